//! Bad starts end at once with one sentence, and leave everything as it was.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::node::{BINARY, Node, free_ports, local, run_to_end, temp_dir};

/// Starts a node that must refuse; returns what it said.
fn refused(dir: &Path, listen: &str, admin: &str) -> String {
    let dir = dir.to_str().unwrap();
    let (code, said) = run_to_end(&[BINARY, "serve", "--data-dir", dir, "--listen", listen, "--admin", admin]);
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "one sentence: {said}");
    assert!(said.starts_with("ringcast: ") && !said.contains("panicked"), "{said}");
    said
}

fn free() -> (String, String) {
    let (port, admin) = free_ports();
    (local(port).to_string(), local(admin).to_string())
}

#[test]
fn a_port_in_use_is_named() {
    let dir = temp_dir();
    let (listen, admin) = free();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    for (listen, admin) in [(&taken.1, &admin), (&listen, &taken.1)] {
        let said = refused(dir.path(), listen, admin);
        assert!(said.contains(&taken.1) && said.contains("is in use"), "{said}");
    }
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing was made");
}

#[test]
fn a_second_node_on_the_same_port_or_data_is_refused_and_the_first_goes_on() {
    let node = Node::start(&["--shards", "1"]);
    let other = temp_dir();
    let (listen, admin) = free();
    let said = refused(other.path(), &node.listen.to_string(), &admin);
    assert!(said.contains(&node.listen.to_string()) && said.contains("is in use"), "{said}");
    let said = refused(&node.dir, &listen, &admin);
    assert!(said.contains("ringcast.db"), "{said}");
    assert_eq!(node.post_text("still", "here"), 1);
}

#[test]
fn a_foreign_database_is_left_alone() {
    let (listen, admin) = free();
    let mut sqlite = b"SQLite format 3\0".to_vec();
    sqlite.resize(8_192, 0);
    for content in [&b"a letter to mother\n"[..], &sqlite, &[0; 4_096]] {
        let dir = temp_dir();
        let path = dir.path().join("ringcast.db");
        fs::write(&path, content).unwrap();
        let said = refused(dir.path(), &listen, &admin);
        assert!(said.contains("ringcast.db"), "{said}");
        assert_eq!(fs::read(&path).unwrap(), content, "untouched");
    }
}

#[test]
fn a_data_directory_that_is_none_is_named() {
    let (listen, admin) = free();
    let dir = temp_dir();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let said = refused(&file, &listen, &admin);
    assert!(said.contains(file.to_str().unwrap()), "{said}");
    let said = refused(&file.join("below"), &listen, &admin);
    assert!(said.contains(file.to_str().unwrap()), "{said}");
    // Nobody is kept from writing who is root.
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(closed.join("probe"), "x").is_err() {
        let said = refused(&closed, &listen, &admin);
        assert!(said.contains(closed.to_str().unwrap()), "{said}");
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    let said = refused(Path::new("/proc/ringcast"), &listen, &admin);
    assert!(said.contains("/proc/ringcast"), "{said}");
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let dir = temp_dir();
    drop(Node::start_in(dir.path(), &["--shards", "1"]));
    let key = dir.path().join("demo.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let (listen, admin) = free();
    let path = dir.path().to_str().unwrap();
    let (code, said) = run_to_end(&[BINARY, "serve", "--data-dir", path, "--listen", &listen, "--admin", &admin]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("demo.key") && said.contains("chmod 600"), "{said}");
}

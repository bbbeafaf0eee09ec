//! Libraries that are loaded in front of the C library and let the machine be other than it is.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `tests/e2e/fault/{name}.c` into this directory; returns the library.
pub(crate) fn build(name: &str, dir: &Path) -> PathBuf {
    let library = dir.join(format!("{name}.so"));
    let source = format!("{}/tests/e2e/fault/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(built.expect("a C compiler, which the node's own build needs too").success());
    library
}

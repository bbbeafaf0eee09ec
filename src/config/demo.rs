//! The `demo` app, which is there when no app is configured: two keys that are made at the first start.
//!
//! The data directory flows in, the app with its keys flows out. Always true: a key file appears whole or not at all,
//! readable by its owner only; two processes that start at once end up with the same keys; a file that is there is never
//! written again; and the app serves loopback only, so that nobody outside meets a node that was only tried out.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::ConfigError;
use crate::admission::AppOptions;
use crate::admission::auth::{SERVER_KEY_PREFIX, TokenKey, hash_server_key};
use crate::base::Name;

/// The name of the app.
pub const NAME: &str = "demo";
/// The file of its server key, in the data directory.
pub const SERVER_KEY_FILE: &str = "demo.key";
/// The file of the HS256 secret that its tokens are signed with, in the data directory.
pub const SECRET_FILE: &str = "demo.jwt";

/// Random characters of a key: 6 bits each, 258 together.
pub(super) const KEY_CHARS: usize = 43;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Makes the keys where there are none, and reads them.
///
/// # Errors
/// Names the file that cannot be made, read or trusted.
pub(super) fn open(dir: &Path, message_bytes_max: u32) -> Result<AppOptions, ConfigError> {
    let key = dir.join(SERVER_KEY_FILE);
    let secret = dir.join(SECRET_FILE);
    make(&key, SERVER_KEY_PREFIX)?;
    make(&secret, "")?;
    let server_key = read(&key, SERVER_KEY_PREFIX)?;
    let token_key = TokenKey::hs256(None, read(&secret, "")?.as_bytes())
        .map_err(|why| ConfigError::file(&secret, "holds no secret", why))?;
    let name = Name::new(NAME).map_err(|why| ConfigError::file(dir, NAME, why.to_string()))?;
    Ok(AppOptions {
        token_keys: vec![token_key],
        anonymous_read: true,
        loopback_only: true,
        message_bytes_max,
        ..AppOptions::new(name, hash_server_key(&server_key))
    })
}

/// The secret that tokens of the demo app are signed with.
///
/// # Errors
/// There is none in `dir`, or it cannot be trusted.
pub fn secret(dir: &Path) -> Result<String, ConfigError> {
    read(&dir.join(SECRET_FILE), "")
}

fn make(path: &Path, prefix: &str) -> Result<(), ConfigError> {
    if path.exists() {
        return Ok(());
    }
    let failed = |error: std::io::Error| ConfigError::file(path, "cannot be made", error.to_string());
    let random = random_chars(KEY_CHARS).map_err(|why| ConfigError::file(path, "cannot be made", why))?;
    let suffix = random_chars(8).map_err(|why| ConfigError::file(path, "cannot be made", why))?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{suffix}.tmp"));
    let temporary = PathBuf::from(temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).map_err(failed)?;
    let made = writeln!(file, "{prefix}{random}").and_then(|()| file.sync_all()).and_then(|()| {
        // A link fails where the name is taken, which a rename would not: whoever comes second takes the other's key.
        match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    });
    let removed = fs::remove_file(&temporary);
    made.and(removed).map_err(failed)
}

fn read(path: &Path, prefix: &str) -> Result<String, ConfigError> {
    let failed = |error: std::io::Error| {
        ConfigError::file(path, "cannot be read", format!("{error}; the node makes the file at its first start"))
    };
    let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let what = format!("may be read by others (mode {:03o})", mode & 0o777);
        return Err(ConfigError::file(path, what, "a key is its owner's alone: chmod 600"));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    let text = text.trim();
    let rest = text.strip_prefix(prefix).unwrap_or_default();
    if rest.len() < 32 || !text.bytes().all(|byte| ALPHABET.contains(&byte)) {
        let why = "remove it, and the node makes a new one at its next start";
        return Err(ConfigError::file(path, "holds no key", why));
    }
    Ok(text.to_owned())
}

pub(super) fn random_chars(count: usize) -> Result<String, String> {
    let mut bytes = vec![0; count];
    getrandom::fill(&mut bytes).map_err(|error| format!("the machine gives no random numbers: {error}"))?;
    Ok(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 63)])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::auth::{Speaker, authenticate, make_token};

    #[test]
    fn keys_are_made_once_and_belong_to_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path(), 100).unwrap();
        let key = fs::read_to_string(dir.path().join(SERVER_KEY_FILE)).unwrap();
        assert_eq!((key.len(), key.starts_with("rk_")), (3 + KEY_CHARS + 1, true));
        let mode = fs::metadata(dir.path().join(SECRET_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);

        let again = open(dir.path(), 100).unwrap();
        assert_eq!(again.server_key_hash, first.server_key_hash);
        assert_eq!(authenticate(&again, Some(key.trim()), 0), Ok(Speaker::Server));
        let token = make_token(secret(dir.path()).unwrap().as_bytes(), "ann", None, 10).unwrap();
        assert!(matches!(authenticate(&first, Some(&token), 0), Ok(Speaker::User(_))));
        assert!(again.loopback_only && again.anonymous_read);
    }

    #[test]
    fn a_file_that_cannot_be_trusted_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(secret(dir.path()).unwrap_err().to_string().contains("first start"));
        open(dir.path(), 100).unwrap();
        let path = dir.path().join(SECRET_FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = open(dir.path(), 100).unwrap_err().to_string();
        assert!(error.contains("demo.jwt") && error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short\n").unwrap();
        assert!(open(dir.path(), 100).unwrap_err().to_string().contains("holds no key"));
    }
}

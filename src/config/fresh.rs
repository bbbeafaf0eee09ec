//! A new app with keys that nobody has seen before, as a block of a configuration.
//!
//! A name flows in, the block and the server key flow out. Always true: the block loads, and it holds the key's hash
//! only; the key itself is in the caller's hands, once.

use std::fmt::Write;

use super::demo::{KEY_CHARS, random_chars};
use crate::admission::auth::{SERVER_KEY_PREFIX, hash_server_key};
use crate::base::Name;

/// What there is to show of a new app.
pub struct FreshApp {
    /// Its `[[app]]`.
    pub block: String,
    /// Its server key.
    pub server_key: String,
}

/// Makes keys for an app.
///
/// # Errors
/// The machine gives no random numbers.
pub fn app(name: &Name) -> Result<FreshApp, String> {
    let server_key = format!("{SERVER_KEY_PREFIX}{}", random_chars(KEY_CHARS)?);
    let secret = random_chars(KEY_CHARS)?;
    let hash = hash_server_key(&server_key).iter().fold(String::new(), |mut text, byte| {
        // A String takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    });
    let block = format!(
        "[[app]]
name = \"{name}\"
# The hash of its server key, which was shown once.
server_key_sha256 = \"{hash}\"
# Pages that may connect, as browsers say it, such as \"https://shop.example\". Empty: every page.
origins = []
# Who has no token may read.
anonymous_read = false

# What its users' tokens are signed with. Whoever knows the secret can be any of them: keep this file to its owner
# (chmod 600), or move the secret into a file of its own (secret_file).
[[app.token_key]]
kid = \"1\"
algorithm = \"HS256\"
secret = \"{secret}\"
"
    );
    Ok(FreshApp { block, server_key })
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;
    use super::*;
    use crate::admission::auth::{Speaker, authenticate};

    #[test]
    fn what_is_printed_loads_and_no_two_are_the_same() {
        let fresh = |name: &str| app(&Name::new(name).unwrap()).unwrap();
        let (shop, game) = (fresh("shop"), fresh("game.2:x"));
        let config = load(&format!("{}{}", shop.block, game.block)).unwrap();
        assert_eq!(config.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>(), ["shop", "game.2:x"]);
        assert_eq!(authenticate(&config.apps[0], Some(&shop.server_key), 0), Ok(Speaker::Server));
        assert!(authenticate(&config.apps[1], Some(&shop.server_key), 0).is_err());
        assert!(!shop.block.contains(&shop.server_key) && config.apps[0].token_keys.len() == 1);
    }
}

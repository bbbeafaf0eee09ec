//! Builds each part once and joins them: a configuration flows in, the end of the node flows out.

use std::fmt;

use crate::config::Config;

/// Why a node did not start, or ended.
#[derive(Debug)]
pub struct NodeError {
    /// What the process ends with.
    pub exit_code: u8,
    /// A sentence for the operator.
    pub message: String,
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for NodeError {}

/// Runs the node until it is told to end.
///
/// # Errors
/// The machine or the data refuses.
pub fn serve(config: Config) -> Result<(), NodeError> {
    let _ = config;
    Err(NodeError { exit_code: 3, message: "this build holds no node".into() })
}

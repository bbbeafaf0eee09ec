//! What crosses cores: bounded mailboxes, and every letter that lies in them.
//!
//! Letters flow from one core to another and nothing else does. Always true: a mailbox has a limit, a push that does
//! not fit gives the letter back, and one ring of the bell serves a whole batch.

pub mod bell;
pub mod connections;
pub mod letters;
pub mod mailbox;
pub mod presence;
pub mod report;
mod sync;

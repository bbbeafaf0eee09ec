//! What the node counts, as people and machines read it: reports flow in, exposition text flows out.

pub mod render;

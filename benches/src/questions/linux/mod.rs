//! What the questions about a running Linux guest have in common.

pub mod http;
pub mod machine;
mod tiny;

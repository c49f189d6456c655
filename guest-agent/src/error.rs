//! The body of every answer that is an error.

use serde::{Deserialize, Serialize};

/// `{"error": {..}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorInfo,
}

/// What went wrong, for a program (`code`, `errno`, `path`, `field`) and for a person (`message`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// A stable word such as `bad_request`, `not_found`, `conflict`, `too_large`, `gone`, `io`.
    pub code: String,
    /// One sentence.
    pub message: String,
    /// The name of the system's error number, where a system call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<String>,
    /// The path that the failed call was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The request's field at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

//! Values of options, as `tine-jailer` and `tine-vmm` read them.

use std::ffi::OsString;

use lexopt::Parser;

/// An option's value, which another option is not taken for.
///
/// # Errors
///
/// In words that name the option, when there is none.
pub fn value(name: &str, line: &mut Parser) -> Result<OsString, String> {
    if let Some(value) = line.optional_value() {
        return Ok(value);
    }
    let missing = || format!("--{name}: its value is missing");
    let words = line.try_raw_args();
    let next = words.as_ref().and_then(|words| words.peek());
    match next.is_none_or(|word| word.as_encoded_bytes().starts_with(b"--")) {
        true => Err(missing()),
        false => line.value().map_err(|_| missing()),
    }
}

/// An option's value as text.
///
/// # Errors
///
/// As for [`value`], and when it is not UTF-8.
pub fn text(name: &str, line: &mut Parser) -> Result<String, String> {
    let text = value(name, line)?.into_string();
    text.map_err(|bytes| format!("--{name}: {} is not UTF-8", bytes.display()))
}

//! Values on the command line: sizes, durations, drives, variables.

use std::path::PathBuf;
use std::time::Duration;

use tine::config::ConsoleConfig;
use tine_devices::virtio::block::layers::Format;

/// A size with its unit: `256M`, `2G`; a bare number is MiB. In bytes.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 10,
        "" | "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("give a size such as 256M or 2G".to_owned()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "give a size such as 256M or 2G".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "that is too large".to_owned())
}

/// A duration with its unit: `500ms`, `30s`, `5m`, `1h`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    tine::clock::parse_duration(text)
        .ok_or_else(|| "give a time such as 500ms, 30s or 5m".to_owned())
}

/// A drive's image, and whether it is read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    pub path: PathBuf,
    pub read_only: bool,
    pub format: Format,
}

/// `PATH`, with `,ro` and `,qcow2` behind it. The format is never guessed: whoever can write to a
/// raw image could make it look like another one.
pub fn drive(text: &str) -> Result<Drive, String> {
    let (mut path, mut read_only, mut format) = (text, false, Format::Raw);
    loop {
        match path.rsplit_once(',') {
            Some((rest, "ro")) => (path, read_only) = (rest, true),
            Some((rest, "rw")) => (path, read_only) = (rest, false),
            Some((rest, "raw")) => (path, format) = (rest, Format::Raw),
            Some((rest, "qcow2")) => (path, format) = (rest, Format::Qcow2),
            _ => break,
        }
    }
    match path {
        "" => Err("give the path of an image".to_owned()),
        path => Ok(Drive {
            path: path.into(),
            read_only,
            format,
        }),
    }
}

/// `NAME=VALUE`, or `NAME` for the value it has here.
pub fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => match std::env::var(text) {
            Ok(value) => (text, value),
            Err(_) => return Err(format!("{text} has no value here: give {text}=VALUE")),
        },
    };
    match name {
        "" => Err("give NAME=VALUE".to_owned()),
        name => Ok((name.to_owned(), value)),
    }
}

/// A file of this host, and where it goes in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    pub from: PathBuf,
    pub to: String,
}

/// `PATH:GUEST_PATH`.
pub fn file(text: &str) -> Result<Copied, String> {
    match text.rsplit_once(':') {
        Some((from, to)) if !from.is_empty() && to.starts_with('/') => Ok(Copied {
            from: from.into(),
            to: to.to_owned(),
        }),
        _ => Err("give PATH:GUEST_PATH, the second one absolute".to_owned()),
    }
}

/// `none`, `stdout`, or a file.
pub fn console(text: &str) -> Result<ConsoleConfig, String> {
    Ok(match text {
        "" => return Err("give none, stdout or a file".to_owned()),
        "none" => ConsoleConfig::None,
        "stdout" => ConsoleConfig::Stdout,
        path => ConsoleConfig::File(path.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("256"), Ok(256 << 20));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("0"), Ok(0));
        for bad in ["", "M", "1.5G", "-1M", "1X", "99999999999T", "1M2"] {
            assert!(size(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "s", "-1s", "1d", "inf", "1e400"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn drives() {
        assert_eq!(
            drive("a,b.ext4,ro"),
            Ok(Drive {
                path: "a,b.ext4".into(),
                read_only: true,
                format: Format::Raw,
            })
        );
        assert_eq!(
            drive("a,b.ext4"),
            Ok(Drive {
                path: "a,b.ext4".into(),
                read_only: false,
                format: Format::Raw,
            })
        );
        let both = drive("a.qcow2,qcow2,ro").unwrap();
        assert!(both.read_only && both.format == Format::Qcow2);
        assert!(drive(",ro").is_err());
    }

    #[test]
    fn variables() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(variable("=x").is_err());
        assert!(
            variable("NOT_SET_ANYWHERE_42")
                .unwrap_err()
                .contains("NOT_SET_ANYWHERE_42=VALUE")
        );
    }
}

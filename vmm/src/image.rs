//! Where the guest image is that the project's own recipe built.

use std::env;
use std::path::PathBuf;

/// The built kernel and initramfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The kernel, an uncompressed ELF file.
    pub kernel: PathBuf,
    /// The initramfs with the agent.
    pub initramfs: PathBuf,
}

/// The image has not been built.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "there is no guest image at {}: build it with guest-agent/image/build, or give --kernel and \
     --initrd",
    .0.display()
)]
pub struct NoImage(PathBuf);

impl Image {
    /// The image in the cache: `$TINE_CACHE_DIR`, else `$XDG_CACHE_HOME/tine`, else
    /// `$HOME/.cache/tine`.
    pub fn built() -> Result<Self, NoImage> {
        Self::in_cache(cache_dir())
    }

    fn in_cache(cache: PathBuf) -> Result<Self, NoImage> {
        let dir = cache.join("image");
        let image = Self {
            kernel: dir.join("vmlinux"),
            initramfs: dir.join("initramfs.cpio"),
        };
        match image.kernel.is_file() && image.initramfs.is_file() {
            true => Ok(image),
            false => Err(NoImage(dir)),
        }
    }
}

/// Where what was built once is kept: `$TINE_CACHE_DIR`, else `$XDG_CACHE_HOME/tine`, else
/// `$HOME/.cache/tine`.
pub fn cache_dir() -> PathBuf {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("TINE_CACHE_DIR").unwrap_or_else(|| {
        let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
        base.unwrap_or_else(|| "/var/cache".into()).join("tine")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_both_files() {
        let cache = tempfile::tempdir().unwrap();
        let missing = Image::in_cache(cache.path().into())
            .unwrap_err()
            .to_string();
        assert!(missing.contains("guest-agent/image/build"), "{missing}");
        let dir = cache.path().join("image");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("vmlinux"), "").unwrap();
        assert!(Image::in_cache(cache.path().into()).is_err());
        std::fs::write(dir.join("initramfs.cpio"), "").unwrap();
        assert_eq!(
            Image::in_cache(cache.path().into()).unwrap().kernel,
            dir.join("vmlinux")
        );
    }
}

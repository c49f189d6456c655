//! Files of the guest, over `/v1/files`.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hyper::Method;
use hyper::body::Bytes;
use tine_guest_agent::files::{
    Chmod, FileInfo, Mkdir, Remove, Rename, Symlink, Unpacked, WatchEvent,
};
use tokio::sync::mpsc;

use super::error::Error;
use super::http::{Body, Http, percent_encode};
use super::stream::{Content, Lines};

/// The files of one machine. Paths are the guest's, and absolute.
#[derive(Debug, Clone)]
pub struct Files(Http);

/// How a file is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Permission bits; what is replaced keeps its own.
    pub mode: Option<u32>,
    /// Owner and group.
    pub owner: Option<(u32, u32)>,
    /// Missing directories are made.
    pub parents: bool,
    /// The bytes go behind what is there. Otherwise the file is replaced as a whole.
    pub append: bool,
    /// The bytes are on disk when the answer comes.
    pub sync: bool,
}

impl Files {
    pub(super) fn of(http: Http) -> Self {
        Self(http)
    }

    /// What is at a path; a symbolic link itself unless it is to be followed.
    pub async fn stat(&self, path: &Path, follow: bool) -> Result<FileInfo, Error> {
        let target = format!("{}&follow={follow}", target("stat", path));
        self.0.json(Method::GET, &target, Body::empty()).await
    }

    /// What is in a directory, in no order.
    pub async fn list(&self, path: &Path) -> Result<Vec<FileInfo>, Error> {
        let target = target("list", path);
        self.0.json(Method::GET, &target, Body::empty()).await
    }

    /// The bytes of a file.
    pub async fn read(&self, path: &Path) -> Result<Content, Error> {
        self.content(&target("content", path)).await
    }

    /// Writes a file.
    pub async fn write(
        &self,
        path: &Path,
        bytes: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<FileInfo, Error> {
        let mut target = target("content", path);
        if let Some(mode) = options.mode {
            target.push_str(&format!("&mode={:o}", mode & 0o7777));
        }
        push_owner(&mut target, options.owner);
        let WriteOptions {
            parents,
            append,
            sync,
            ..
        } = options;
        target.push_str(&format!("&parents={parents}&append={append}&sync={sync}"));
        let body = Body::Whole(bytes.into());
        self.0.json(Method::PUT, &target, body).await
    }

    /// A directory's content, or one file, as a tar archive.
    pub async fn download(&self, path: &Path) -> Result<Content, Error> {
        self.content(&target("tar", path)).await
    }

    /// Unpacks a tar archive into a directory, which is made if `parents` says so. An error among
    /// the pieces breaks the upload off.
    pub async fn upload(
        &self,
        path: &Path,
        owner: Option<(u32, u32)>,
        parents: bool,
        pieces: mpsc::Receiver<io::Result<Bytes>>,
    ) -> Result<Unpacked, Error> {
        let mut target = format!("{}&parents={parents}", target("tar", path));
        push_owner(&mut target, owner);
        self.0
            .json(Method::PUT, &target, Body::Pieces(pieces))
            .await
    }

    /// Makes a directory.
    pub async fn mkdir(&self, wanted: &Mkdir) -> Result<(), Error> {
        self.change("mkdir", Body::json(wanted)).await
    }

    /// Gives a file another name.
    pub async fn rename(&self, wanted: &Rename) -> Result<(), Error> {
        self.change("rename", Body::json(wanted)).await
    }

    /// Removes a file or directory.
    pub async fn remove(&self, wanted: &Remove) -> Result<(), Error> {
        self.change("remove", Body::json(wanted)).await
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, wanted: &Symlink) -> Result<(), Error> {
        self.change("symlink", Body::json(wanted)).await
    }

    /// Changes mode and owner.
    pub async fn chmod(&self, wanted: &Chmod) -> Result<(), Error> {
        self.change("chmod", Body::json(wanted)).await
    }

    /// Follows changes. What is changed after this returns is told.
    pub async fn watch(&self, path: &Path, recursive: bool) -> Result<Lines<WatchEvent>, Error> {
        let target = format!("{}&recursive={recursive}", target("watch", path));
        let answer = self
            .0
            .send(Method::GET, &target, None, Body::empty())
            .await?;
        Ok(Lines::new(answer.into_body()))
    }

    async fn content(&self, target: &str) -> Result<Content, Error> {
        let answer = self
            .0
            .send(Method::GET, target, None, Body::empty())
            .await?;
        Ok(Content::new(answer.into_body()))
    }

    async fn change(&self, what: &str, body: Body) -> Result<(), Error> {
        let target = format!("/v1/files/{what}");
        self.0.done(Method::POST, &target, body).await
    }
}

fn target(what: &str, path: &Path) -> String {
    let path = percent_encode(path.as_os_str().as_bytes());
    format!("/v1/files/{what}?path={path}")
}

fn push_owner(target: &mut String, owner: Option<(u32, u32)>) {
    if let Some((uid, gid)) = owner {
        target.push_str(&format!("&uid={uid}&gid={gid}"));
    }
}

//! The steps that change what is around the process: its root, its network, its mounts.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::{Jail, out_of_order};
use crate::config::Network;
use crate::error::{JailError, failed};
use crate::owners::{Owner, Owners};
use crate::plan::{MountsBy, NetworkBy};
use crate::{namespace, paths, root, sys};

impl Jail<'_> {
    pub(super) fn take_root(
        &mut self,
        binds: &[crate::Bind],
        owner: Owner,
    ) -> Result<(), JailError> {
        // In a copy of the host's mounts, what was opened before the copy belongs to the other one.
        let root = match (&self.root_path, &self.root) {
            (Some(path), _) if self.left => &paths::open_dir(path)?,
            (_, Some(root)) => root,
            _ => return Err(out_of_order()),
        };
        let mut made = Vec::new();
        let mut owners = Owners::new(&self.proc, owner);
        for bind in binds {
            self.binds
                .push(root::take_bind(root.as_fd(), bind, &mut owners, &mut made)?);
        }
        self.holders = owners.let_go();
        let tree = root::take(root.as_fd(), root::ROOT_FLAGS)?;
        if let Some(claim) = &mut self.claim {
            claim.record.made.extend(made);
            if self.left {
                // The process has been noted down before.
                claim.write()?;
            }
        }
        self.root = Some(tree);
        Ok(())
    }

    pub(super) fn enter_network(
        &mut self,
        network: &Network,
        by: NetworkBy,
    ) -> Result<(), JailError> {
        let enter = |fd: &OwnedFd, what: &str| {
            move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(failed(format!("enter the network {what}")))
        };
        match network {
            Network::Host => Ok(()),
            Network::Join(path) => {
                // `/var/run`, where such files traditionally are, is a link: links are followed,
                // and then it has to be what it is said to be.
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let fd = openat(CWD, path, flags, Mode::empty())
                    .map_err(failed(format!("open {}", path.display())))?;
                match sys::is_namespace(fd.as_fd(), libc::CLONE_NEWNET) {
                    true => enter(&fd, &path.display().to_string()),
                    false => Err(paths::refuse(
                        path,
                        "no network namespace: make one with `ip netns add NAME`, and give \
                         /run/netns/NAME",
                    )),
                }
            }
            Network::Empty => {
                if by == NetworkBy::Kept
                    && let Some(kept) = &self.kept
                {
                    return enter(&kept.network, "that is kept for jails");
                }
                sys::unshare(UnshareFlags::NEWNET).map_err(failed("make a network namespace"))
            }
        }
    }

    pub(super) fn leave_mounts(&mut self, by: MountsBy) -> Result<(), JailError> {
        self.left = true;
        if by == MountsBy::Kept
            && let Some(kept) = &self.kept
        {
            move_into_link_name_space(kept.mounts.as_fd(), Some(LinkNameSpaceType::Mount))
                .map_err(failed("enter the mount namespace that is kept for jails"))?;
            return sys::unshare(UnshareFlags::NEWNS).map_err(failed("make a mount namespace"));
        }
        namespace::unshare_mounts()
    }
}

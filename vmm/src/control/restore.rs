//! Making the machine of a snapshot.

use std::fs;
use std::path::PathBuf;

use tine_guest_agent::refresh::{NewInterface, Refresh};

use super::command::{Command, Refusal};
use super::controller::Controller;
use super::interfaces::{OtherInterface, give_addresses};
use super::refresh::GuestIdentity;
use super::settings::Settings;
use super::state::State;
use crate::agent;
use crate::config::{ConsoleConfig, MachineConfig};
use crate::machine::Machine;
use crate::snapshot::{Loaded, Place, Prefetch};

/// Which machine is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreRequest {
    /// The snapshot.
    pub snapshot: Place,
    /// Let its guest run at once.
    pub resume: bool,
    /// What of its network interfaces becomes another one.
    pub interfaces: Vec<OtherInterface>,
    /// The socket by which other processes reach the guest's.
    pub vsock: Option<PathBuf>,
    /// What of it becomes another one.
    pub identity: GuestIdentity,
    /// A file that says which of the snapshot's memory is to be read ahead.
    pub working_set: Option<PathBuf>,
}

impl Controller {
    pub(super) fn restore(&mut self, request: &RestoreRequest) -> Result<(), Refusal> {
        self.before_start()?;
        if self.settings.is_configured() {
            return Err(Refusal::failed(
                "restore a snapshot",
                "the machine has been configured already: restore in a new process",
            ));
        }
        let loaded = Loaded::at(&request.snapshot)
            .map_err(|err| Refusal::failed("restore the snapshot", err))?;
        let given = request.working_set.as_deref();
        let prefetch = Prefetch::wanted(given, &request.snapshot, &loaded.memory);
        let prefetch = prefetch.map_err(|err| Refusal::failed("restore the snapshot", err))?;
        if let Some(prefetch) = prefetch {
            // As early as can be: it has until the guest comes to it.
            prefetch.begin();
        }
        let mut addresses = request.interfaces.iter();
        let told = addresses.any(OtherInterface::concerns_guest);
        if !loaded.description.agent && (told || !request.identity.is_empty()) {
            return Err(Refusal::failed(
                "restore the snapshot",
                "its guest has no agent that could be told another name, variables, files or addresses",
            ));
        }
        let (mut config, interfaces) = self.restored_config(&loaded, request)?;
        // In its directory the machine's own layers outlive its process; elsewhere they are gone with
        // their last descriptor.
        let run_dir = self.shared.identity.run_dir.clone();
        let own = run_dir.clone().unwrap_or_else(std::env::temp_dir);
        let made = loaded
            .disks
            .place(&loaded.description, &mut config, &own)
            .map_err(|err| Refusal::failed("restore the snapshot", err))?;
        self.shared.go(State::Starting, None);
        let result = self.make(&loaded, &config, request, interfaces);
        if result.is_err() || run_dir.is_none() {
            made.iter().for_each(|path| drop(fs::remove_file(path)));
        }
        if result.is_err() {
            // Also where its guest runs already, and only the last step failed.
            self.drop_machine();
            self.refresh = None;
            self.shared
                .status
                .send_modify(|status| status.access = None);
            // The same process can be told better.
            self.shared.go(State::Created, None);
        }
        result?;
        self.settings = Settings::restored(&config, self.settings.clone());
        self.publish_settings();
        self.record(State::Starting.word(), None);
        if !request.resume {
            self.shared.go(State::Paused, None);
        }
        Ok(())
    }

    /// The configuration of the machine: the snapshot's, with what the caller gives. And what its guest
    /// is to be told of its network interfaces.
    fn restored_config(
        &self,
        loaded: &Loaded,
        request: &RestoreRequest,
    ) -> Result<(MachineConfig, Vec<NewInterface>), Refusal> {
        let failed = |reason: String| Refusal::failed("restore the snapshot", reason);
        let mut config = loaded.description.config();
        config.console = match (self.settings.console(), &request.snapshot) {
            // Clients of the known API read a restored guest's console there.
            (ConsoleConfig::None, Place::Pair { .. } | Place::Served { .. }) => {
                ConsoleConfig::Stdout
            }
            (console, _) => console,
        };
        config.console_limit = self.settings.console_limit();
        // From a pair of files, clients of the known API expect the socket where it was.
        let told = match &request.snapshot {
            Place::Pair { .. } | Place::Served { .. } => loaded.description.vsock_path.clone(),
            _ => None,
        };
        config.vsock.uds_path = request.vsock.clone().or(told);
        for OtherInterface { id, .. } in &request.interfaces {
            let mut interfaces = config.interfaces.iter();
            if !interfaces.any(|interface| interface.id == *id) {
                return Err(failed(format!(
                    "its machine has no network interface {id:?}"
                )));
            }
        }
        // Clients of the known API have the same machine again, or see to that themselves.
        let anew = matches!(request.snapshot, Place::Directory(_) | Place::Fork(_));
        let anew = anew && loaded.description.agent;
        let interfaces = give_addresses(&mut config, &request.interfaces, anew)
            .map_err(|err| Refusal::failed("get random bytes for the guest", err))?;
        if let Some(interfaces) = &loaded.description.metadata {
            let store = self.shared.metadata.clone();
            let reached = loaded.description.metadata_config.unwrap_or_default();
            store
                .configure(reached)
                .map_err(|err| failed(err.to_string()))?;
            config.metadata = Some(crate::config::MetadataConfig {
                store,
                interfaces: interfaces.clone(),
            });
        }
        Ok((config, interfaces))
    }

    fn make(
        &mut self,
        loaded: &Loaded,
        config: &MachineConfig,
        request: &RestoreRequest,
        interfaces: Vec<NewInterface>,
    ) -> Result<(), Refusal> {
        let ended = self.shared.clone();
        let machine = Machine::restore(
            config,
            loaded.memory.clone(),
            &loaded.sections,
            move |ending| ended.tell(Command::Ended(ending)),
        )
        .map_err(Box::new)?;
        self.introduce(&machine)?;
        self.watch_server(&machine)?;
        self.generation = loaded.generation.saturating_add(1);
        if loaded.description.agent {
            let refresh = agent::new_identity(self.generation)
                .map_err(|err| Refusal::failed("get random bytes for the guest", err))?;
            let refresh = Refresh {
                interfaces,
                ..refresh
            };
            self.refresh = Some(request.identity.clone().put_into(refresh));
        }
        self.confine()?;
        if request.resume {
            machine.resume();
        }
        self.machine = Some(machine);
        if request.resume {
            self.refresh_guest()?;
        }
        Ok(())
    }
}

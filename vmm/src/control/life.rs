//! The machine's life: its start, pauses, and how it is asked to end.

use std::sync::{Arc, Once};

use tine_guest_agent::status::ShutdownAction;
use tine_jailer::seccomp::{self, Mode, Role};

use super::access::Access;
use super::command::{Command, Refusal};
use super::controller::Controller;
use super::handle::Shared;
use super::state::State;
use crate::agent::{Agent, Hellos};
use crate::config::MetadataConfig;
use crate::logger::{self, Level};
use crate::machine::Machine;
use crate::threads::Starter;

impl Controller {
    pub(super) fn start(&mut self) -> Result<(), Refusal> {
        self.before_start()?;
        let mut config = self.settings.machine_config()?;
        config.metadata = self.settings.mmds.as_ref().map(|mmds| MetadataConfig {
            store: self.shared.metadata.clone(),
            interfaces: mmds.network_interfaces.clone(),
        });
        self.shared.go(State::Starting, None);
        let result = self.assemble(&config);
        if result.is_err() {
            // The same process can be told better.
            self.shared.go(State::Created, None);
        }
        result?;
        self.record(State::Starting.word(), None);
        Ok(())
    }

    pub(super) fn assemble(
        &mut self,
        config: &crate::config::MachineConfig,
    ) -> Result<(), Refusal> {
        let ended = self.shared.clone();
        let machine = Machine::assemble(config, move |ending| ended.tell(Command::Ended(ending)))
            .map_err(Box::new)?;
        self.introduce(&machine)?;
        self.confine()?;
        machine.resume();
        self.machine = Some(machine);
        Ok(())
    }

    /// Gives up what only making a machine needs. Comes right before the first guest code runs:
    /// until then nobody hostile had a say but through the API.
    pub(super) fn confine(&mut self) -> Result<(), Refusal> {
        let mode = seccomp::mode();
        if self.confined || mode == Mode::Off {
            return Ok(());
        }
        let starter = self.starter.begin();
        starter.map_err(|err| Refusal::failed("start a thread", err))?;
        seccomp::install(Role::Main, "main").map_err(|err| Refusal::failed("start", err))?;
        self.confined = mode == Mode::Filter;
        Ok(())
    }

    /// Waits for the agent of a machine that has just been made, and tells everybody of the ways
    /// into it.
    pub(super) fn introduce(&self, machine: &Machine) -> Result<(), Refusal> {
        listen_for_agent(machine, self.shared.clone())?;
        if self.shared.deletion.times().is_some() {
            return Err(Refusal::Busy("delete"));
        }
        let access = Access::to(machine);
        self.shared
            .status
            .send_modify(|status| status.access = Some(access));
        Ok(())
    }

    pub(super) fn pause(&mut self) -> Result<(), Refusal> {
        self.started()?.pause();
        if self.shared.go(State::Paused, None) {
            self.record(State::Paused.word(), None);
        }
        Ok(())
    }

    pub(super) fn resume(&mut self) -> Result<(), Refusal> {
        let machine = self.started()?;
        if self.state() != State::Paused {
            return Ok(());
        }
        let answered = self.shared.status.borrow().agent.is_some();
        let next = if answered {
            State::Running
        } else {
            State::Starting
        };
        machine.resume();
        if self.shared.go(next, None) {
            self.record(next.word(), None);
        }
        self.refresh_guest()
    }

    pub(super) fn ctrl_alt_del(&mut self) -> Result<(), Refusal> {
        self.started()?;
        match self.state() {
            State::Running => self.ask_guest(ShutdownAction::Reboot),
            state => Err(Refusal::failed(
                "send Ctrl-Alt-Del",
                format_args!(
                    "there is no keyboard, it is the agent that is told, and the machine is {state}"
                ),
            )),
        }
    }

    /// Asks the guest to end in good order. It is hostile: nobody waits for its answer here.
    pub(super) fn ask_guest(&mut self, action: ShutdownAction) -> Result<(), Refusal> {
        let agent = Agent::new(self.started()?.vsock().clone());
        let ask = move || {
            if let Err(err) = agent.shut_down(action) {
                logger::log(Level::Warning, err);
            }
        };
        let thread = self.starter.spawn("shutdown", Role::Worker, ask);
        thread.map_err(|err| Refusal::failed("start a thread", err))?;
        self.asked_to_end = true;
        Ok(())
    }
}

/// Waits for the agent on a thread of its own, which lives as long as the process.
fn listen_for_agent(machine: &Machine, shared: Arc<Shared>) -> Result<(), Refusal> {
    let hellos = Hellos::listen(machine.vsock())
        .map_err(|err| Refusal::failed("listen for the agent", err))?;
    let wait = move || {
        // A guest that announces nonsense again and again is told of once.
        let nonsense = Once::new();
        loop {
            match hellos.next() {
                Ok((hello, connection)) => {
                    shared.tell(Command::Hello(Box::new(hello)));
                    // The agent keeps it open for as long as it lives, and so does this side.
                    let _ = std::io::copy(&mut &connection, &mut std::io::sink());
                }
                Err(crate::agent::AgentError::Connect(_)) => return,
                Err(err) => nonsense.call_once(|| {
                    shared.tell(Command::BadHello(err.to_string()));
                }),
            }
        }
    };
    let thread = Starter::default().spawn("hello", Role::Worker, wait);
    thread
        .map(drop)
        .map_err(|err| Refusal::failed("start a thread", err))
}

//! `tine-agent`: runs commands in a Tine guest on its monitor's behalf. See [`agent`].

mod agent;

fn main() -> std::process::ExitCode {
    agent::main()
}

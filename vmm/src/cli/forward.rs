//! `tine forward`: ports of the host's loopback that lead to ports of a guest.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tine::client::{Error, Machine};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::failure::Failure;
use super::session::Signals;
use super::{output, rundir};

/// How long accepting pauses when the host has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Forward ports of this host to ports of a guest
#[derive(clap::Args)]
#[command(after_help = "\
Listens on 127.0.0.1, and connects to 127.0.0.1 in the guest for each connection, until it is ended
with a signal or the machine ends. With 0 for HOST_PORT the system chooses one. A line for each
port says where it listens.

Examples:
  tine forward web 8080:80
  tine forward --json web 0:5432 0:6379")]
pub struct Args {
    /// Print a JSON object for each port
    #[arg(long)]
    json: bool,
    /// The machine
    #[arg(value_name = "ID", value_parser = rundir::id)]
    id: String,
    /// Ports; one number stands for both
    #[arg(value_name = "HOST_PORT:GUEST_PORT", required = true, value_parser = pair)]
    ports: Vec<(u16, u16)>,
}

fn pair(text: &str) -> Result<(u16, u16), String> {
    let wrong = || "give HOST_PORT:GUEST_PORT, each from 1 to 65535".to_owned();
    let (host, guest) = text.split_once(':').unwrap_or((text, text));
    match (host.parse(), guest.parse()) {
        (Ok(host), Ok(guest)) if guest > 0 => Ok((host, guest)),
        _ => Err(wrong()),
    }
}

/// Forwards until the machine ends or a signal comes.
pub async fn forward(args: Args) -> Result<u8, Failure> {
    let machine = rundir::machine(&args.id)?;
    let mut signals = Signals::watch()?;
    let failed = |err: Error| Failure::of(&args.id, &err);
    // Found out now, and not when somebody connects.
    Machine::connect(machine.socket()).await.map_err(failed)?;
    let mut listeners = Vec::new();
    for (host, guest) in &args.ports {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *host));
        let unable = |err| Failure::new(format!("cannot listen on {address}: {err}"));
        let listener = TcpListener::bind(address).await.map_err(unable)?;
        let address = listener.local_addr().map_err(unable)?;
        let id = &args.id;
        output::print(&match args.json {
            true => format!(
                "{{\"host\":\"{}\",\"host_port\":{},\"guest_port\":{guest}}}\n",
                address.ip(),
                address.port()
            ),
            false => format!("{address} -> {id}:{guest}\n"),
        })?;
        listeners.push((listener, *guest));
    }
    for (listener, guest) in listeners {
        tokio::spawn(accept(listener, machine.clone(), args.id.clone(), guest));
    }
    tokio::select! {
        number = signals.ending() => Err(Failure::signal(number)),
        reason = end_of(&machine) => Err(Failure::new(format!("machine {}: {reason}", args.id))),
    }
}

/// Waits until the machine ends.
async fn end_of(machine: &Machine) -> String {
    loop {
        match machine.events().await {
            Ok(mut events) => while let Ok(Some(_)) = events.next().await {},
            Err(err) if err.is_gone() => return "it does not run any more".to_owned(),
            // It cannot tell; whoever connects finds out.
            Err(_) => std::future::pending().await,
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

async fn accept(listener: TcpListener, machine: Machine, id: String, guest: u16) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let (machine, id) = (machine.clone(), id.clone());
                tokio::spawn(async move {
                    if let Err(err) = join(client, &machine, guest).await {
                        let err = output::printable(&err.to_string());
                        eprintln!("tine: {id}:{guest}: {err}");
                    }
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Joins one connection to the guest's port. Each direction ends by itself.
async fn join(mut client: TcpStream, machine: &Machine, guest: u16) -> Result<(), Error> {
    // Small messages of a protocol must not wait for others.
    let _ = client.set_nodelay(true);
    let mut port = match machine.port(guest).await {
        Ok(port) => port,
        Err(err) => {
            // A reset, as a closed port would give it.
            let _ = client.set_zero_linger();
            return Err(err);
        }
    };
    // A connection that breaks concerns its two ends, which see it.
    let _ = copy_bidirectional(&mut client, &mut port).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::pair;

    #[test]
    fn ports() {
        assert_eq!(pair("8080:80"), Ok((8080, 80)));
        assert_eq!(pair("80"), Ok((80, 80)));
        assert_eq!(pair("0:80"), Ok((0, 80)));
        for bad in ["", ":", "80:", "80:0", "0", "65536:1", "a:b", "1:2:3"] {
            assert!(pair(bad).is_err(), "{bad:?}");
        }
    }
}

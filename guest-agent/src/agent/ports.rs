//! `/v1/ports/{port}`: a byte stream to a TCP port of the guest.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use hyper::body::Incoming;
use hyper::{Method, Request};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tine_guest_agent::RAW_UPGRADE;

use super::conn::Conn;
use super::fault::Fault;
use super::http::{self, Reply};
use super::routes::{only, unknown};

/// Bytes moved at once.
const CHUNK: usize = 32 * 1024;

/// Connects, and then becomes the connection.
pub async fn answer(mut request: Request<Incoming>, rest: &str) -> Reply {
    let port: u16 = match rest.parse() {
        Ok(port) if port > 0 => port,
        _ => return Err(unknown(request.uri().path())),
    };
    only(&request, &Method::POST)?;
    if !http::wants_upgrade(&request, RAW_UPGRADE)? {
        return Err(Fault::bad_request(format_args!(
            "a port needs `Upgrade: {RAW_UPGRADE}`"
        )));
    }
    let pending = hyper::upgrade::on(&mut request);
    let port = connect(port)
        .await
        .map_err(|error| Fault::io(&error, &format!("port {port}")))?;
    Ok(http::upgrade(
        pending,
        RAW_UPGRADE,
        move |host, early| async move {
            if port.write_all(&early).await.is_ok() {
                join(copy(&host, &port), copy(&port, &host)).await;
            }
        },
    ))
}

/// IPv4 first; servers that were told "localhost" may listen on IPv6 alone.
async fn connect(port: u16) -> io::Result<Conn> {
    let first = attempt((Ipv4Addr::LOCALHOST, port).into()).await;
    match first {
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {
            attempt((Ipv6Addr::LOCALHOST, port).into())
                .await
                .map_err(|_| error)
        }
        result => result,
    }
}

async fn attempt(address: SocketAddr) -> io::Result<Conn> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno.into()),
    }
    // Small messages of a protocol must not wait for others.
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    let conn = Conn::new(socket)?;
    conn.connected().await?;
    Ok(conn)
}

/// Copies until the end of `from`, which is passed on; the other direction may go on.
async fn copy(from: &Conn, to: &Conn) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            to.shut_write();
            return Ok(());
        }
        to.write_all(&buffer[..count]).await?;
    }
}

/// Runs both directions until both have ended, or one has failed.
async fn join(
    there: impl Future<Output = io::Result<()>>,
    back: impl Future<Output = io::Result<()>>,
) {
    let mut there = std::pin::pin!(there);
    let mut back = std::pin::pin!(back);
    let first = super::race(there.as_mut(), back.as_mut()).await;
    let _ = match first {
        super::Either::Left(Ok(())) => back.await,
        super::Either::Right(Ok(())) => there.await,
        super::Either::Left(failed) | super::Either::Right(failed) => failed,
    };
}

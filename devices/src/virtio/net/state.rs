//! What of an interface a snapshot keeps.

use serde::{Deserialize, Serialize};
use tine_snapshot::section::{Section, State};

use super::{Backend, Net};
use crate::rate::RateLimiterState;
use crate::state::RestoreError;

/// A settled interface. What the host may leave to the driver follows from the features that were
/// agreed on, and a detour begins anew: to the guest its host has restarted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NetState {
    mac: Option<[u8; 6]>,
    mtu: Option<u16>,
    /// The driver was asked to announce itself and has not said that it did.
    pub announcing: bool,
    /// The limiter has let the next frame from the guest pass already.
    pub tx_paid: bool,
    rx_limiter: RateLimiterState,
    tx_limiter: RateLimiterState,
}

impl State for NetState {
    const KIND: &'static str = "virtio-net";
    const VERSION: u16 = 1;
}

impl NetState {
    pub fn of<B: Backend>(net: &Net<B>) -> Self {
        Self {
            mac: net.mac,
            mtu: net.mtu,
            announcing: net.announcing,
            tx_paid: net.active.as_ref().is_some_and(|active| active.tx.paid),
            rx_limiter: net.handle.rx_limiter.save(),
            tx_limiter: net.handle.tx_limiter.save(),
        }
    }

    /// Checks that `net` is the interface that the driver knows, and sets its limiters.
    pub fn restore<B: Backend>(&self, section: &Section, net: &Net<B>) -> Result<(), RestoreError> {
        let section = &section.name;
        // Another one is told to the guest by who restores it; that there is one is a feature, and those
        // have been agreed on.
        let mac = |mac: Option<[u8; 6]>| if mac.is_some() { "given" } else { "none" }.to_owned();
        RestoreError::unless_same(
            section,
            "the guest's MAC address",
            mac(self.mac),
            mac(net.mac),
            "configure the interface as it was",
        )?;
        let mtu = |mtu: Option<u16>| mtu.map_or("none".to_owned(), |mtu| mtu.to_string());
        RestoreError::unless_same(
            section,
            "the MTU",
            mtu(self.mtu),
            mtu(net.mtu),
            "configure the interface as it was",
        )?;
        let (rx, tx) = (&net.handle.rx_limiter, &net.handle.tx_limiter);
        rx.restore(section, "rx_limiter", &self.rx_limiter)?;
        tx.restore(section, "tx_limiter", &self.tx_limiter)
    }
}

//! The answers to clients whose TCP segments come as UDP datagrams (wire.md §4.8).

use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use datapath::Pins;
use datapath::hook::{Choice, Hook};
use datapath::tcp_in_udp::{Answers, Devices};
use datapath::verifier::Verifier;
use wire::Carrier;

/// If the settings allow TCP segments in datagrams, checks that the other settings permit this. Gateways may take such
/// segments, because the answers of the hosts behind them leave by the same interface.
pub(super) fn check(settings: &Settings) -> Result<()> {
    let takes = settings.kernel.takes(Carrier::TcpInUdp);
    ensure!(
        !takes || settings.hook == Choice::Only(Hook::Tc),
        "the carrier `tcp_in_udp` requires `hook = \"tc\"`: programs at XDP see no answers. Set `hook` to \"tc\", or \
         remove `tcp_in_udp` from `carriers`"
    );
    // Each of these finds a connection by the addresses and ports of its segments. A connection in datagrams has
    // another key there.
    let (shares_flows, relays) = (!settings.peers.is_empty(), !settings.proxy_protocol.is_empty());
    for (setting, is_set) in [("pool", !settings.pool.is_empty()), ("peers", shares_flows), ("proxy_protocol", relays)]
    {
        ensure!(
            !takes || !is_set,
            "the carrier `tcp_in_udp` and `{setting}` exclude each other: remove `tcp_in_udp` from `carriers`, or \
             remove `{setting}`"
        );
    }
    ensure!(
        !takes || settings.mark.is_none(),
        "the carrier `tcp_in_udp` and `verdict = \"mark\"` exclude each other: rules of the packet filter would see \
         TCP segments where the clients sent datagrams. Remove one of them"
    );
    Ok(())
}

/// Loads the programs for answers, if the settings allow TCP segments in datagrams. Otherwise removes the programs and
/// devices that an earlier process left, and returns `None`.
pub(super) fn load(verifier: &Verifier, settings: &Settings, pins: &Pins) -> Result<Option<Answers>> {
    let owner = pins.name();
    if !settings.kernel.takes(Carrier::TcpInUdp) {
        pins.remove_tcp_in_udp()?;
        return Devices::remove(&owner).map(|()| None);
    }
    let devices = Devices::set_up(&owner).context("the carrier `tcp_in_udp` needs two devices of its own")?;
    Answers::load(verifier, &devices, Some(pins.tcp_in_udp()?)).map(Some)
}

/// Ends the programs, and removes the devices.
pub(super) fn end(answers: &mut Option<Answers>, pins: &Pins) -> Result<()> {
    if let Some(mut answers) = answers.take() {
        answers.detach();
    }
    Devices::remove(&pins.name())
}

//! The answers to clients whose TCP segments come as UDP datagrams (wire.md §4.8).

use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use datapath::Pins;
use datapath::hook::{Choice, Hook};
use datapath::tcp_in_udp::{Answers, Devices};
use datapath::verifier::Verifier;
use wire::Carrier;

/// If the settings allow TCP segments in datagrams, checks that the other settings permit this.
pub(super) fn check(settings: &Settings) -> Result<()> {
    let takes = settings.kernel.takes(Carrier::TcpInUdp);
    ensure!(
        !takes || settings.hook == Choice::Only(Hook::Tc),
        "the carrier `tcp_in_udp` requires `hook = \"tc\"`: programs at XDP see no answers. Set `hook` to \"tc\", or \
         remove `tcp_in_udp` from `carriers`"
    );
    ensure!(
        !takes || settings.inside.is_empty(),
        "gateways do not take the carrier `tcp_in_udp`: remove it from `carriers`, or run a verifier on each host"
    );
    ensure!(
        !takes || settings.mark.is_none(),
        "the carrier `tcp_in_udp` and `verdict = \"mark\"` exclude each other: rules would see segments that nobody has \
         sent as such. Remove one of them"
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

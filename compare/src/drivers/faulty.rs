//! Two solutions with a known result, which the method must find. One is the plain path with a gateway that drops every
//! 50th packet. The other is the plain path a second time, unchanged: it must tie with the first plain path.

use anyhow::{Context, Result};

use crate::claims::{Claims, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN};
use crate::workshop::Workshop;

struct Faulty {
    drops: bool,
}

/// Returns the path that drops packets, and the second plain path.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Faulty { drops: true }), Box::new(Faulty { drops: false })]
}

impl Driver for Faulty {
    fn name(&self) -> String {
        if self.drops { "faulty" } else { "plain-again" }.to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: if self.drops { "plain path that drops every 50th packet" } else { "plain path again" }.to_owned(),
            family: "none".to_owned(),
            transport: Transport::None,
            plane: Plane::Kernel,
            cipher: "none".to_owned(),
            features: Vec::new(),
            standard: false,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("nft", "nftables")]
    }

    fn version(&self) -> String {
        "nft --version".to_owned()
    }

    fn prepare(&self, shop: &mut Workshop, _: usize) -> Result<()> {
        let rules = "table ip faulty { chain f { type filter hook forward priority 0; iifname eth0 numgen inc mod 50 == 0 \
                     drop; }; }";
        shop.file("server", "rules.nft", rules).map(drop)
    }

    fn start_server(&self, scene: &mut Scene) -> Result<()> {
        if !self.drops {
            return Ok(());
        }
        let file = scene.path(End::Server, "rules.nft");
        scene.run(End::Server, "nft flush ruleset")?;
        scene
            .run(End::Server, &format!("nft -f {}", file.display()))
            .context("cannot load the rule that drops packets")
            .map(drop)
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        scene.ip(End::Client, &format!("route replace {LAN} via {GATEWAY}"))
    }

    fn door(&self) -> Door {
        Door::Inside
    }

    fn is_for_tests(&self) -> bool {
        true
    }
}

//! No solution: the client's packets are routed unchanged. All solutions are compared with this path.

use anyhow::Result;

use crate::claims::{Claims, Feature, Plane, Transport};
use crate::driver::{Door, Driver, Need};
use crate::scene::{End, Scene};
use crate::site::{GATEWAY, LAN};
use crate::workshop::Workshop;

struct Plain;

/// Returns the plain path as a list with one solution.
pub fn variants() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Plain)]
}

impl Driver for Plain {
    fn name(&self) -> String {
        "plain".to_owned()
    }

    fn claims(&self) -> Claims {
        Claims {
            title: "plain path".to_owned(),
            family: "none".to_owned(),
            transport: Transport::None,
            plane: Plane::Kernel,
            cipher: "none".to_owned(),
            features: vec![Feature::PassesNat, Feature::Windows, Feature::MacOs, Feature::Android, Feature::Ios],
            standard: true,
        }
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::new("ip", "iproute2")]
    }

    fn version(&self) -> String {
        "uname -sr".to_owned()
    }

    fn prepare(&self, _: &mut Workshop, _: usize) -> Result<()> {
        Ok(())
    }

    fn start_server(&self, _: &mut Scene) -> Result<()> {
        Ok(())
    }

    fn start_client(&self, scene: &mut Scene) -> Result<()> {
        scene.ip(End::Client, &format!("route replace {LAN} via {GATEWAY}"))
    }

    fn door(&self) -> Door {
        Door::Inside
    }
}

//! The demo runs the whole system step by step for a person to watch, and ends with a table of expected and observed
//! results.

mod scene;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use lab::world::{Services, Way};
use lab::{Namespace, World};

use scene::Scene;
use table::Table;

/// Options of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Duration of each of the fifteen throughput measurements, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    measure: u64,
}

/// Runs the demo. The exit code is 0 if every result is as expected, 1 if not, and 2 if the demo could not be run.
pub fn run(args: &Args) -> ExitCode {
    let began = Instant::now();
    let mut table = Table::default();
    match play(args, &mut table) {
        Ok(()) => {
            println!("\n{table}");
            println!("{} in {:.1} s", table.verdict(), began.elapsed().as_secs_f64());
            ExitCode::from(u8::from(!table.all_as_expected()))
        }
        Err(error) => {
            println!("\n{table}");
            eprintln!("demo: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn play(args: &Args, table: &mut Table) -> Result<()> {
    let time = std::time::Duration::from_secs(args.measure);
    println!(
        "Alice and Mallory share one public address behind a strict NAT. Across the Internet: a server with sshd.\n\
         Everybody lives in a network namespace of this machine; packets, programs and network stacks are real."
    );
    let network = lab::world::Network::new(Way::Nat)?;
    let services = Services::start(&network)?;
    let mut scene = Scene::new(table, network.way);
    scene.without(&network, &services)?;

    let world = World::around_with(network, services, "5m", &["--hook", "auto"])?;
    scene.protected_from_all(&world)?;
    world.agent.login(&world.authority, "alice")?;
    scene.alice(&world)?;
    scene.mallory(&world)?;
    scene.forgeries(&world)?;
    scene.replay(&world)?;
    scene.whois(&world)?;
    scene.throughput(&world, time)?;
    scene.revocation(&world)
}

/// Reports whether `host` has the program `command`.
fn is_there(host: &Namespace, command: &str) -> bool {
    host.run(["sh", "-c", &format!("command -v {command}")]).is_ok()
}

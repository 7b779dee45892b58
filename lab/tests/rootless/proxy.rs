//! Tests of `vouchsafe proxy`: programs and a browser of its user get through, and nobody else does.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::nobody::{said, succeed};
use lab::world::DARK4;
use lab::{Nobody, Process, test};

use super::programs::{PAGE, WEB, web};
use super::stage::Stage;

/// Starts a proxy, and returns it with its address.
fn start(nobody: &Nobody<'_>) -> Result<(Process, String)> {
    let proxy = nobody.start(nobody.vouchsafe(["proxy", "--listen", "127.0.0.1:0"]), "listening on")?;
    let log = proxy.log();
    let address = log.split("listening on ").nth(1).and_then(|rest| rest.split(": ").next());
    let address = address.context("an address")?.to_owned();
    Ok((proxy, address))
}

#[test]
fn the_proxy_serves_its_user_and_nobody_else() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let _web = web(&stage)?;
        let (_proxy, address) = start(&nobody)?;
        let url = format!("http://{DARK4}:{WEB}/");
        for kind in ["socks5h", "http"] {
            let fetch = |mut curl: Command| {
                let proxy = format!("{kind}://{address}");
                curl.args(["-sS", "--max-time", "10", "--proxytunnel", "--proxy", &proxy, &url]);
                curl.output().context("curl")
            };
            let page = fetch(nobody.command("curl"))?;
            ensure!(page.status.success() && page.stdout == PAGE.as_bytes(), "{kind}: {}", said(&page));
            let page = fetch(stage.network.alice.command("curl"))?;
            ensure!(!page.status.success(), "{kind}: another user of the machine got {}", said(&page));
        }
        let open = nobody.vouchsafe(["proxy", "--listen", "0.0.0.0:1080"]).output()?;
        ensure!(open.status.code() == Some(2) && said(&open).contains("loopback"), "{}", said(&open));
        Ok(())
    });
}

#[test]
fn chromium_loads_a_page_through_the_proxy() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let _web = web(&stage)?;
        let (_proxy, address) = start(&nobody)?;
        let mut chromium = nobody.command(env::var_os("VOUCHSAFE_CHROMIUM").unwrap_or_else(|| "chromium".into()));
        chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]);
        chromium.args(["--disable-background-networking", "--disable-component-update", "--timeout=20000"]);
        chromium.arg(format!("--user-data-dir={}", nobody.path("profile").display()));
        chromium.arg(format!("--proxy-server=socks5://{address}"));
        let text = succeed(chromium.args(["--dump-dom", &format!("http://{DARK4}:{WEB}/")]))?;
        ensure!(text.contains(PAGE), "{text}");
        Ok(())
    });
}

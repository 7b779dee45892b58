//! Tests of the interfaces and hooks to which the programs are attached.

use super::stage::*;
use authority::admin;
use authority::storage::Which;
use datapath::verifier::Sizes;
use nix::sys::signal::Signal;
use verifier::control::Request;
use verifier::view;

#[test]
fn a_driver_without_xdp_is_protected_by_the_kernel() {
    act(|stage| async move {
        stage.add_bridge("bridge0");
        let _verifier = stage.run(&["--interface", "bridge0", "--hook", "xdp"]).await;
        let mode = |interface: view::Interface| (interface.name, interface.mode);
        let modes: Vec<_> = stage.status().await.interfaces.into_iter().map(mode).collect();
        assert_eq!(modes, [("bridge0", "generic"), ("eth0", "native")].map(|(n, m)| (n.to_owned(), m.to_owned())));
    });
}

#[test]
fn a_virtual_interface_is_judged_at_tc_and_status_says_why() {
    act(|stage| async move {
        echo(SSH);
        let verifier = stage.run(&[]).await;
        let interface = stage.status().await.interfaces.swap_remove(0);
        assert_eq!((interface.hook.as_str(), interface.mode.as_str()), ("tc", tc_mode()));
        assert_eq!((interface.why.as_str(), stage.has_xdp()), ("virtual (veth)", false));
        let (code, text) = stage.cli(&["status"], stage.daemon()).await;
        assert!(code == 0 && text.contains("virtual (veth)"), "{text}");
        // At either hook, the programs count and report drops.
        assert!(!stage.connects(SSH));
        let drops: view::Drops = stage.ask(Request::Drops { from: 0 }).await;
        assert!(drops.reasons.iter().any(|reason| reason.name == "no_token" && reason.packets > 0), "{drops:?}");
        assert!(!drops.samples.is_empty());
        verifier.connected().await;
        let grant = grant(&stage.alice().await).await;
        assert!(stage.is_answered(&syn(&grant, "10.77.0.2:4711", 1)));
    });
}

#[test]
fn a_bridge_is_left_to_its_ports() {
    act(|mut stage| async move {
        stage.everywhere = true;
        stage.add_bridge("bridge0");
        let verifier = stage.run(&[]).await;
        assert_eq!(stage.links().unwrap(), ["bridge0", "eth0"]);
        stage.enter_bridge("bridge0");
        until("the bridge to be left out", || (stage.links().unwrap() == ["eth0"]).then_some(())).await;
        let status = stage.status().await;
        assert_eq!((status.interfaces.len(), status.interfaces[0].name.as_str()), (1, "eth0"));
        assert!(status.not_attached.iter().any(|i| i.name == "bridge0" && i.why.contains("through eth0")));
        assert!(!verifier.log().contains("ERROR"), "{}", verifier.log());
        // Each packet is checked once: the bridge must not drop it because its token was removed at the port.
        let grant = grant(&stage.alice().await).await;
        echo("0.0.0.0:22");
        assert!(stage.is_answered(&syn(&grant, "10.77.0.2:4711", 1)));
        assert!(!stage.connects(SSH));
    });
}

#[test]
fn at_tc_a_verifier_admits_drops_and_cuts() {
    act(|stage| async move {
        echo(SSH);
        echo(WEB);
        let adopted = stage.connect(SSH).unwrap();
        let verifier = stage.run(&["--hook", "tc"]).await;
        let interface = stage.status().await.interfaces.swap_remove(0);
        assert_eq!((interface.hook.as_str(), interface.mode.as_str()), ("tc", tc_mode()));
        assert!(echoes(&adopted) && stage.connects(WEB) && !stage.connects(SSH));
        verifier.connected().await;
        let grant = grant(&stage.alice().await).await;
        // The answer shows that the stack got the SYN intact and without its token.
        assert!(stage.is_answered(&syn(&grant, "10.77.0.2:4711", 1)));
        assert!(!stage.is_answered(&syn(&grant, "10.77.0.2:4712", 1)[..54]));
        let client = "10.77.0.2:4711".parse().unwrap();
        let whois: Vec<view::Flow> = stage.ask(Request::Whois { client, server: None }).await;
        assert_eq!(whois[0].person.as_deref(), Some("alice"));
        admin::revoke(&stage.authority, &Which::Person("alice".into())).await.unwrap();
        let kernel = stage.kernel(Sizes::default());
        until("the cut", || (kernel.flows.keys().len() == 1).then_some(())).await;
        assert!(!stage.is_answered(&syn(&grant, "10.77.0.2:4713", 3)));
        assert_eq!(stage.cli(&["detach"], stage.daemon()).await.0, 0);
        assert!(stage.connects(SSH));
    });
}

#[test]
fn another_hook_keeps_flows_and_leaves_nothing_of_the_first() {
    act(|stage| async move {
        echo(SSH);
        let connection = stage.connect(SSH).unwrap();
        let mut hooks = ["xdp", "auto", "xdp", "tc", "auto", "xdp"].into_iter().peekable();
        while let Some(hook) = hooks.next() {
            let mut verifier = stage.run(&["--hook", hook]).await;
            // The default hook on a veth is tc.
            let hook = if hook == "auto" { "tc" } else { hook };
            assert_eq!(stage.status().await.interfaces[0].hook, hook);
            assert_eq!(stage.has_xdp(), hook == "xdp");
            assert_eq!((stage.flows().await.len(), stage.links().unwrap()), (1, vec!["eth0".to_owned()]));
            assert!(echoes(&connection) && !stage.connects(SSH));
            verifier.signal(if hooks.peek().is_some() { Signal::SIGTERM } else { Signal::SIGKILL });
            verifier.end().await;
        }
        assert_eq!(stage.cli(&["detach"], stage.daemon()).await.0, 0);
        assert!(!stage.has_xdp() && stage.connects(SSH));
    });
}

/// Returns the names of the interfaces through which packets reach this host unchecked.
fn open(status: &view::Status) -> Vec<&str> {
    status.not_attached.iter().filter(|one| one.open).map(|one| one.name.as_str()).collect()
}

#[test]
fn a_bridge_whose_ports_are_not_all_judged_is_named_as_open() {
    act(|stage| async move {
        let _beyond = stage.beyond();
        stage.add_bridge("bridge0");
        stage.enter_bridge("bridge0");
        stage.inside(&["ip", "link", "set", "far", "master", "bridge0"]);
        let verifier = stage.run(&[]).await;
        let status = stage.status().await;
        assert_eq!(open(&status), ["far"]);
        assert!(status.not_attached[0].why.contains("reach bridge0"), "{:?}", status.not_attached);
        let (code, text) = stage.cli(&["status"], stage.daemon()).await;
        assert_eq!((code, text.contains("far")), (1, true), "{text}");
        verifier.says("unprotected: its frames reach bridge0").await;
        stage.inside(&["ip", "link", "set", "far", "nomaster"]);
        let closed = || verifier.log().contains("attached").then_some(());
        until("an attachment", closed).await;
        let deadline = std::time::Instant::now() + SOON;
        while !open(&stage.status().await).is_empty() {
            assert!(std::time::Instant::now() < deadline, "the port has left the bridge");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(stage.cli(&["status"], stage.daemon()).await.0, 0);
    });
}

#[test]
fn siblings_on_one_interface_are_judged_or_named_as_open() {
    const HERE: &str = "10.79.0.5:22";
    act(|mut stage| async move {
        stage.everywhere = true;
        echo("0.0.0.0:22");
        stage.inside(&["ip", "link", "add", "mv0", "link", "eth0", "type", "macvlan", "mode", "bridge"]);
        stage.inside(&["ip", "addr", "add", "10.79.0.5/24", "dev", "mv0"]);
        stage.inside(&["ip", "link", "set", "mv0", "up"]);
        let sibling = stage.sibling("10.79.0.6/24");
        assert!(sibling.connects(HERE) && stage.connects(SSH));
        // From a sibling on the same lower interface, the kernel passes unicast to tc there, but not to XDP in the
        // driver, and broadcast to neither.
        for (hook, reached) in [("auto", false), ("xdp", true)] {
            let mut verifier = stage.run(&["--hook", hook]).await;
            assert!(!stage.connects(SSH), "from the wire, {hook}");
            assert_eq!(sibling.connects(HERE), reached, "from its sibling, {hook}");
            let status = stage.status().await;
            assert_eq!(open(&status), ["mv0"], "{:?}", status.not_attached);
            assert_eq!(stage.cli(&["status"], stage.daemon()).await.0, 1);
            verifier.signal(Signal::SIGTERM);
            verifier.end().await;
        }

        let _verifier = stage.run(&["--interface", "mv0"]).await;
        assert!(!sibling.connects(HERE), "judged at the interface itself");
        assert_eq!(open(&stage.status().await), [""; 0]);
        assert_eq!(stage.cli(&["status"], stage.daemon()).await.0, 0);
    });
}

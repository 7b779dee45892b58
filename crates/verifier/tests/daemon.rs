//! Tests of the daemon as a process, with its kernel programs on a real interface and a real authority. Needs root.

mod boot;
mod exposure;
mod hooks;
mod proofs;
mod reports;
mod stage;
mod trials;

use authority::admin;
use authority::storage::Which;
use datapath::verifier::Sizes;
use measure::Stopwatch;
use nix::sys::signal::Signal;
use stage::*;
use std::time::Duration;
use verifier::control::Request;
use verifier::view;
use wire::map::{Flow, FlowKey};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// Acts as the verifier's program if the tests started their own executable for that; otherwise does nothing.
#[test]
fn the_program() {
    program();
}

#[test]
fn a_verifier_enrols_protects_and_tells_how_it_stands() {
    act(|stage| async move {
        echo(SSH);
        echo(WEB);
        let directory = stage.directory().display().to_string();
        let enrol = ["enrol", "--dir", &directory];
        let (code, text) = stage.cli(&enrol, stage.enrolment().await).await;
        assert_eq!((code, text.contains("enrolled as edge-1")), (0, true), "{text}");
        let (code, text) =
            stage.cli(&enrol, ["--authority", "https://x", "--code", "x"].map(Into::into).to_vec()).await;
        assert_eq!((code, text.contains("--again")), (2, true), "{text}");

        let verifier = stage.run(&["--metrics", "10.77.0.1:9465"]).await;
        assert!(!stage.connects(SSH) && stage.connects(WEB));
        let status = stage.status().await;
        assert_eq!((status.verifier.as_str(), status.state.as_str()), ("edge-1", "protecting"));
        assert_eq!((status.interfaces[0].name.as_str(), status.interfaces[0].mode.as_str()), ("eth0", tc_mode()));
        assert_eq!(status.protected[0].prefix, "10.77.0.1/32");
        assert!(status.keys_until.unwrap() > verifier::now() + 23 * 3600);
        let drops: view::Drops = stage.ask(Request::Drops { from: 0 }).await;
        assert!(drops.reasons.iter().any(|reason| reason.name == "no_token" && reason.packets > 0), "{drops:?}");
        verifier.connected().await;

        let page = stage.outside(&["curl", "-sS", "--max-time", "5", "http://10.77.0.1:9465/metrics"]);
        let interface =
            format!("vouchsafe_verifier_interface{{interface=\"eth0\",hook=\"tc\",mode=\"{}\"}} 1.0", tc_mode());
        for line in [
            "vouchsafe_verifier_state{state=\"protecting\"} 1.0",
            &interface,
            "vouchsafe_verifier_connected 1.0",
            "vouchsafe_verifier_dropped_packets_total{reason=\"no_token\"} ",
            "vouchsafe_verifier_table_entries_max{table=\"grants\"} 65536.0",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }

        for command in ["status", "flows", "drops"] {
            let (code, text) = stage.cli(&[command], stage.daemon()).await;
            assert_eq!(code, 0, "{text}");
            let (code, text) = stage.cli(&[command, "--json"], stage.daemon()).await;
            assert!(code == 0 && serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        }
        let explain = |who: &'static [&str]| {
            let arguments = [&["explain", "--to", SSH], who].concat();
            let daemon = stage.daemon();
            let stage = &stage;
            async move { stage.cli(&arguments, daemon).await }
        };
        let (code, text) = explain(&["--from", "10.77.0.2:4711"]).await;
        assert_eq!((code, text.contains("the flow is not admitted")), (1, true), "{text}");
        assert_eq!(explain(&["--from", "10.77.0.2:4711", "--protocol", "udp"]).await.0, 0);
        let (code, text) = explain(&["--person", "alice"]).await;
        assert_eq!((code, text.contains("alice may")), (0, true), "{text}");
        assert_eq!(explain(&["--person", "eve"]).await.0, 1);
        assert_eq!(stage.cli(&["whois", "10.77.0.2:4711"], stage.daemon()).await.0, 1);
        assert!(!verifier.log().contains("ERROR"), "{}", verifier.log());
    });
}

#[test]
fn a_new_enrolment_forgets_the_state_of_the_one_before() {
    act(|stage| async move {
        let (directory, kept) = (stage.directory().display().to_string(), stage.directory().join("cache.json"));
        let (code, text) = stage.cli(&["enrol", "--dir", &directory], stage.enrolment().await).await;
        assert_eq!(code, 0, "{text}");
        std::fs::write(&kept, "what another authority said").unwrap();
        let mut again = vec!["--again".to_owned(), "--code".to_owned()];
        again.push(admin::add_verifier(&stage.authority, "edge-1", true).await.unwrap().to_string());
        let (url, ca) = (format!("https://{}", stage.address), stage.authority.ca().display().to_string());
        again.extend(["--authority", &url, "--ca", &ca].map(Into::into));
        let (code, text) = stage.cli(&["enrol", "--dir", &directory], again).await;
        assert_eq!((code, kept.exists()), (0, false), "{text}");
    });
}

#[test]
fn an_established_connection_is_adopted_and_a_new_one_is_not() {
    act(|stage| async move {
        echo(SSH);
        let (ours, local) = (stage.connect(SSH).unwrap(), stage.connect(SSH).unwrap());
        assert!(echoes(&ours));
        let verifier = stage.run(&[]).await;
        verifier.says("adopted=2").await;
        assert!(echoes(&ours) && echoes(&local));
        assert!(!stage.connects(SSH));
        let client = ours.local_addr().unwrap();
        let whois: Vec<view::Flow> = stage.ask(Request::Whois { client, server: None }).await;
        assert!(whois.len() == 1 && whois[0].adopted && whois[0].packets > 0, "{whois:?}");
    });
}

#[test]
fn an_established_connection_is_cut_if_that_is_wanted() {
    act(|stage| async move {
        echo(SSH);
        let connection = stage.connect(SSH).unwrap();
        let _verifier = stage.run(&["--no-adopt"]).await;
        assert!(!echoes(&connection));
    });
}

#[test]
fn a_restart_loses_neither_flows_nor_protection() {
    act(|stage| async move {
        echo(SSH);
        let connection = stage.connect(SSH).unwrap();
        let mut first = stage.run(&[]).await;
        let before = stage.flows().await;
        first.signal(Signal::SIGTERM);
        assert_eq!(first.end().await.code(), Some(0));
        first.says("protection stays in force").await;
        assert_eq!(stage.links().unwrap(), ["eth0"]);
        assert!(echoes(&connection) && !stage.connects(SSH));

        let late = stage.run(&[]).await;
        let after = stage.flows().await;
        assert_eq!((after.len(), after[0].client, after[0].since), (1, before[0].client, before[0].since));
        assert!(after[0].packets > before[0].packets);
        assert!(!late.log().contains("adopted"), "{}", late.log());
        assert!(echoes(&connection) && !stage.connects(SSH));
    });
}

#[test]
fn a_killed_daemon_leaves_protection_on() {
    act(|stage| async move {
        echo(SSH);
        let connection = stage.connect(SSH).unwrap();
        let mut verifier = stage.run(&[]).await;
        verifier.signal(Signal::SIGKILL);
        assert_eq!(verifier.end().await.code(), None);
        assert_eq!(stage.links().unwrap(), ["eth0"]);
        assert!(echoes(&connection) && !stage.connects(SSH));
        // The kernel program keeps admitting with the keys it has.
        let grant = grant(&stage.alice().await).await;
        assert_eq!(stage.kernel(Sizes::default()).run(&syn(&grant, "10.77.0.2:4711", 1), 1).unwrap().code, XDP_PASS);

        let (code, text) = stage.cli(&["detach"], stage.daemon()).await;
        assert_eq!((code, stage.links()), (0, None), "{text}");
        assert!(stage.connects(SSH));
        assert_eq!(stage.cli(&["detach"], stage.daemon()).await.0, 1);
    });
}

#[test]
fn a_detached_daemon_ends() {
    act(|stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&[]).await;
        assert_eq!(stage.cli(&["detach"], stage.daemon()).await.0, 0);
        assert_eq!((verifier.end().await.code(), stage.links()), (Some(0), None));
        assert!(stage.connects(SSH));
    });
}

#[test]
fn a_revoked_grant_loses_its_flows_within_a_second() {
    act(|stage| async move {
        stage.apply(&[POLICY, SINGLE].concat()).await;
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        let alice = stage.alice().await;
        let mut grants = Vec::new();
        for _ in 0..4 {
            grants.push(grant(&alice).await);
        }
        let kernel = stage.kernel(Sizes::default());
        for (index, grant) in grants[..2].iter().enumerate() {
            let from = format!("10.77.0.2:{}", 4711 + index);
            assert_eq!(kernel.run(&syn(grant, &from, 1), 1).unwrap().code, XDP_PASS);
        }
        let client = "10.77.0.2:4711".parse().unwrap();
        let whois: Vec<view::Flow> = stage.ask(Request::Whois { client, server: None }).await;
        let flow = &whois[0];
        let name = |text: &Option<String>| text.clone().unwrap_or_default();
        assert_eq!(
            (name(&flow.person), name(&flow.device), name(&flow.receiver)),
            ("alice".into(), "laptop".into(), "ssh".into())
        );
        assert!(name(&flow.rule).contains("alice may") && flow.handle.as_deref() == Some(&grants[0].header[16..]));
        let (code, text) = stage.cli(&["whois", "10.77.0.2:4711"], stage.daemon()).await;
        assert_eq!((code, text.contains("alice")), (0, true), "{text}");

        let handle = u64::from_str_radix(&grants[0].header[16..], 16).unwrap();
        let stopwatch = Stopwatch::start();
        admin::revoke(&stage.authority, &Which::Grant(wire::Handle(handle))).await.unwrap();
        until("the cut of one grant", || (kernel.flows.keys().len() == 1).then_some(())).await;
        assert!(stopwatch.elapsed() < Duration::from_secs(1), "took {:?}", stopwatch.elapsed());
        assert_eq!(kernel.run(&syn(&grants[0], "10.77.0.2:4711", 2), 1).unwrap().code, XDP_DROP);
        assert_eq!(kernel.run(&syn(&grants[2], "10.77.0.2:4713", 2), 1).unwrap().code, XDP_PASS);

        let stopwatch = Stopwatch::start();
        admin::revoke(&stage.authority, &Which::Person("alice".into())).await.unwrap();
        until("the cut of a person", || kernel.flows.keys().is_empty().then_some(())).await;
        assert!(stopwatch.elapsed() < Duration::from_secs(1), "took {:?}", stopwatch.elapsed());
        assert_eq!(kernel.run(&syn(&grants[3], "10.77.0.2:4714", 3), 1).unwrap().code, XDP_DROP);
        verifier.says("revoked").await;
        assert!(!verifier.log().contains("ERROR"), "{}", verifier.log());
    });
}

#[test]
fn what_was_revoked_while_the_daemon_was_down_is_cut_when_it_is_back() {
    act(|stage| async move {
        let mut verifier = stage.run(&[]).await;
        let grant = grant(&stage.alice().await).await;
        verifier.signal(Signal::SIGKILL);
        verifier.end().await;
        let kernel = stage.kernel(Sizes::default());
        assert_eq!(kernel.run(&syn(&grant, "10.77.0.2:4711", 1), 1).unwrap().code, XDP_PASS);
        admin::revoke(&stage.authority, &Which::Person("alice".into())).await.unwrap();
        assert_eq!(kernel.flows.keys().len(), 1);
        let _verifier = stage.run(&[]).await;
        assert!(kernel.flows.keys().is_empty());
    });
}

#[test]
fn a_session_that_ended_loses_its_flows_and_stays_ended_when_the_authority_is_back() {
    act(|mut stage| async move {
        let mut verifier = stage.run(&[]).await;
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        stage.stop_authority().await;
        let file = stage.directory().join("cache.json");
        let mut cache: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let ended = serde_json::json!([{ "holder": 0x501, "expires": verifier::now() + 300 }]);
        cache["config"]["revoked_sessions"] = ended;
        std::fs::write(&file, cache.to_string()).unwrap();
        let kernel = stage.kernel(Sizes::default());
        let key = |port| FlowKey::new([10, 77, 0, 2].into(), port, [10, 77, 0, 1].into(), 22, 6);
        for (port, holder) in [(4001, 0x501), (4002, 0x502), (4003, 0x501)] {
            kernel.flows.insert(&key(port), &Flow { holder, ..flow(u64::from(port)) }).unwrap();
        }
        let verifier = stage.run(&[]).await;
        until("the cut", || (kernel.flows.keys() == [key(4002)]).then_some(())).await;
        stage.start_authority().await;
        verifier.connected().await;
        until("what the authority says", || verifier.log().contains("connected to the authority").then_some(())).await;
        let tables = stage.status().await.tables;
        assert!(tables.iter().any(|table| table.name == "ended sessions" && table.used == Some(1)), "{tables:?}");
    });
}

#[test]
fn flows_that_outlived_their_grant_are_cut_within_a_second_of_its_revocation() {
    act(|stage| async move {
        stage.apply(&[POLICY, SINGLE].concat()).await;
        let verifier = stage.run(&["--max-revoked", "16"]).await;
        verifier.connected().await;
        let alice = stage.alice().await;
        let kernel = stage.kernel(Sizes { revoked: 16, ..Sizes::default() });
        for port in 4000..4030 {
            let grant = grant(&alice).await;
            assert_eq!(kernel.run(&syn(&grant, &format!("10.77.0.2:{port}"), 1), 1).unwrap().code, XDP_PASS);
        }
        let adopted = FlowKey::new([10, 77, 0, 2].into(), 5000, [10, 77, 0, 1].into(), 22, 6);
        kernel.flows.insert(&adopted, &flow(0)).unwrap();
        stage.end_grants(&kernel);
        assert_eq!(kernel.flows.keys().len(), 31);

        let stopwatch = Stopwatch::start();
        admin::revoke(&stage.authority, &Which::Person("alice".into())).await.unwrap();
        until("the cut", || (kernel.flows.keys() == [adopted]).then_some(())).await;
        assert!(stopwatch.elapsed() < Duration::from_secs(1), "took {:?}", stopwatch.elapsed());
        let empty = || kernel.revoked.handles().is_empty() && kernel.grants.keys().is_empty();
        until("room: revocations of grants that have ended take none", || empty().then_some(())).await;
        assert_eq!(stage.status().await.state, "protecting");
        verifier.says("sessions ended").await;
        assert!(!verifier.log().contains("ERROR"), "{}", verifier.log());
    });
}

#[test]
fn flows_that_outlived_their_grant_are_cut_by_a_policy_that_would_not_give_it() {
    act(|stage| async move {
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        let grant = grant(&stage.alice().await).await;
        let kernel = stage.kernel(Sizes::default());
        assert_eq!(kernel.run(&syn(&grant, "10.77.0.2:4711", 1), 1).unwrap().code, XDP_PASS);
        stage.end_grants(&kernel);
        stage.apply(&POLICY.replace("services = \"tcp/22\"", "services = [\"tcp/22\", \"tcp/80\"]")).await;
        until("the other policy", || verifier.log().contains("the protected destinations changed").then_some(())).await;
        assert_eq!(kernel.flows.keys().len(), 1);

        let stopwatch = Stopwatch::start();
        stage.apply(&POLICY.replace("person:alice", "person:bob")).await;
        until("the cut", || kernel.flows.keys().is_empty().then_some(())).await;
        assert!(stopwatch.elapsed() < Duration::from_secs(1), "took {:?}", stopwatch.elapsed());
    });
}

#[test]
fn flows_that_outlived_their_grant_are_cut_when_the_daemon_is_back() {
    act(|mut stage| async move {
        let mut verifier = stage.run(&[]).await;
        let grant = grant(&stage.alice().await).await;
        let kernel = stage.kernel(Sizes::default());
        assert_eq!(kernel.run(&syn(&grant, "10.77.0.2:4711", 1), 1).unwrap().code, XDP_PASS);
        stage.end_grants(&kernel);
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        admin::revoke(&stage.authority, &Which::Person("alice".into())).await.unwrap();
        stage.stop_authority().await;
        let verifier = stage.run(&[]).await;
        assert_eq!(kernel.flows.keys().len(), 1);
        stage.start_authority().await;
        until("the cut", || kernel.flows.keys().is_empty().then_some(())).await;
        verifier.says("connected to the authority").await;
    });
}

#[test]
fn ten_thousand_flows_are_rechecked_within_a_second() {
    act(|stage| async move {
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        let grant = grant(&stage.alice().await).await;
        let kernel = stage.kernel(Sizes::default());
        assert_eq!(kernel.run(&syn(&grant, "10.77.0.2:4711", 1), 1).unwrap().code, XDP_PASS);
        stage.end_grants(&kernel);
        // The authority knows none of these grants.
        let key = |port| FlowKey::new([10, 77, 0, 2].into(), port, [10, 77, 0, 1].into(), 22, 6);
        for port in 10_000..20_000 {
            kernel.flows.insert(&key(port), &flow(u64::from(port))).unwrap();
        }
        let stopwatch = Stopwatch::start();
        stage.apply(&POLICY.replace("person:alice", "person:bob")).await;
        // One pass cuts all flows. Polling a single flow spares the authority, which runs on this thread.
        until("the cut", || kernel.flows.get(&key(10_000)).unwrap().is_none().then_some(())).await;
        assert!(stopwatch.elapsed() < Duration::from_secs(1), "took {:?}", stopwatch.elapsed());
        until("the end of the pass", || kernel.flows.keys().is_empty().then_some(())).await;
    });
}

/// Returns a live flow of this grant.
fn flow(handle: u64) -> Flow {
    let now = verifier::now() as u32;
    Flow { handle, origin: u8::from(handle == 0), since: now, seen: now, ..Flow::default() }
}

#[test]
fn an_account_with_more_revoked_grants_than_there_is_room_for_is_shut_out_and_nobody_else() {
    const BOB: &str = "[[rules]]\nname = \"bob may\"\naction = \"allow\"\nwho = \"person:bob\"\nto = \"ssh\"\n";
    act(|stage| async move {
        stage.apply(&[POLICY, SINGLE, BOB].concat()).await;
        let verifier = stage.run(&["--max-revoked", "16"]).await;
        verifier.connected().await;
        let (alice, bob) = (stage.alice().await, stage.person("bob").await);
        let (kept, of_bob) = (grant(&alice).await, grant(&bob).await);
        let mut revoked = Vec::new();
        for _ in 0..20 {
            revoked.push(grant(&alice).await);
        }
        let kernel = stage.kernel(Sizes { revoked: 16, ..Sizes::default() });
        let run = |grant, port, nonce| kernel.run(&syn(grant, &format!("10.77.0.2:{port}"), nonce), 1).unwrap().code;
        for (port, grant) in (4000..).zip(&revoked) {
            assert_eq!(run(grant, port, 1), XDP_PASS);
        }
        assert_eq!([run(&kept, 5000, 1), run(&of_bob, 5001, 1)], [XDP_PASS; 2]);
        for grant in &revoked {
            let handle = u64::from_str_radix(&grant.header[16..], 16).unwrap();
            admin::revoke(&stage.authority, &Which::Grant(wire::Handle(handle))).await.unwrap();
        }
        // Shutting alice out ends all of her flows; bob's stays.
        until("the cut", || (kernel.flows.keys().len() == 1).then_some(())).await;
        assert_eq!([run(&kept, 5002, 2), run(&of_bob, 5003, 2)], [XDP_DROP, XDP_PASS]);
        assert_eq!(stage.status().await.state, "protecting");
        verifier.says("no room for more revoked grants").await;
    });
}

#[test]
fn a_changed_policy_changes_what_is_protected() {
    act(|stage| async move {
        echo(WEB);
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        assert!(stage.connects(WEB));
        stage.apply(&POLICY.replace("tcp/22", "tcp/80")).await;
        until("protection of the other port", || (!stage.connects(WEB)).then_some(())).await;
        assert_eq!(stage.status().await.protected[0].services[0].first_port, 80);
    });
}

#[test]
fn other_epochs_replace_the_programs_and_not_the_attachment() {
    act(|mut stage| async move {
        echo(SSH);
        let connection = stage.connect(SSH).unwrap();
        let verifier = stage.run(&[]).await;
        let file = stage.authority.path().join("authority.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("#epoch_length = \"1h\"", "epoch_length = \"10m\"");
        stage.stop_authority().await;
        std::fs::write(&file, text.replace("#max_lifetime = \"1h\"", "max_lifetime = \"10m\"")).unwrap();
        stage.start_authority().await;
        until("the change", || verifier.log().contains("replaced the programs").then_some(())).await;
        assert_eq!(stage.status().await.epoch_length, 600);
        assert!(stage.status().await.keys_until.unwrap() > verifier::now() + 23 * 600);
        assert!(echoes(&connection) && !stage.connects(SSH));
        assert_eq!(stage.links().unwrap(), ["eth0"]);
    });
}

#[test]
fn without_its_authority_a_verifier_starts_with_what_it_knows() {
    act(|mut stage| async move {
        echo(SSH);
        let mut verifier = stage.run(&[]).await;
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        assert_eq!(stage.cli(&["detach"], stage.daemon()).await.0, 0);
        stage.stop_authority().await;

        let mut verifier = stage.run(&[]).await;
        let status = stage.status().await;
        assert!(!status.connected && status.trouble.is_some() && status.keys_until.is_some());
        assert!(!stage.connects(SSH));
        stage.start_authority().await;
        until("the authority", || verifier.log().contains("connected to the authority").then_some(())).await;
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;

        stage.stop_authority().await;
        assert_eq!(stage.cli(&["detach"], stage.daemon()).await.0, 0);
        std::fs::remove_file(stage.directory().join("cache.json")).unwrap();
        let mut verifier = stage.spawn(&[]).await;
        assert_eq!(verifier.end().await.code(), Some(2));
        verifier.says("Nothing is protected").await;
        assert!(stage.connects(SSH));
    });
}

#[test]
fn an_interface_that_comes_back_is_protected_again() {
    act(|stage| async move {
        echo(SSH);
        let verifier = stage.run(&[]).await;
        assert!(!stage.connects(SSH));
        stage.replace_interface();
        until("another attachment", || (verifier.log().matches("attached").count() == 2).then_some(())).await;
        assert!(!stage.connects(SSH));
    });
}

#[test]
fn other_table_sizes_lose_no_flow() {
    act(|stage| async move {
        echo(SSH);
        let connection = stage.connect(SSH).unwrap();
        let mut verifier = stage.run(&[]).await;
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        let _verifier = stage.run(&["--max-flows", "1000"]).await;
        let flows = stage.status().await.tables.swap_remove(0);
        assert_eq!((flows.used, flows.max), (Some(1), 1000));
        assert!(echoes(&connection) && !stage.connects(SSH));
    });
}

#[test]
fn a_pin_whose_interface_is_gone_is_no_protection() {
    act(|stage| async move {
        let mut verifier = stage.run(&[]).await;
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        stage.replace_interface();
        echo(SSH);
        // The new interface drops packets until the kernel has noticed its carrier.
        let connection = until("a way over the new interface", || stage.connect(SSH).ok()).await;
        let late = stage.run(&[]).await;
        late.says("adopted=1").await;
        assert!(echoes(&connection) && !stage.connects(SSH));
    });
}

#[test]
fn a_second_daemon_is_refused() {
    act(|stage| async move {
        let _verifier = stage.run(&[]).await;
        let mut second = stage.spawn(&[]).await;
        assert_eq!(second.end().await.code(), Some(2));
        second.says("another verifier is running").await;
    });
}

#[test]
fn users_besides_root_ask_whois_at_most() {
    act(|stage| async move {
        const NOBODY: u32 = 65534;
        const OTHER: u32 = 65533;
        let _verifier = stage.run(&["--whois-users", "65534"]).await;
        stage.open_socket();
        assert_eq!(stage.asks(NOBODY, r#"{"request":"whois","client":"10.77.0.2:1"}"#), "{\"ok\":[]}\n");
        assert!(stage.asks(NOBODY, r#"{"request":"status"}"#).contains("error"));
        assert!(stage.asks(NOBODY, r#"{"request":"detach"}"#).contains("error"));
        assert!(stage.asks(OTHER, r#"{"request":"whois","client":"10.77.0.2:1"}"#).contains("error"));
        assert_eq!(stage.status().await.state, "protecting");
    });
}

#[test]
fn a_wrong_setting_is_named() {
    act(|stage| async move {
        let mut verifier = stage.run(&[]).await;
        verifier.signal(Signal::SIGTERM);
        verifier.end().await;
        let file = stage.directory().join("verifier.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("#tcp_idle", "tcp_idel")).unwrap();
        let mut verifier = stage.spawn(&[]).await;
        assert_eq!(verifier.end().await.code(), Some(2));
        verifier.says("did you mean `tcp_idle`?").await;
    });
}

#[test]
fn a_master_key_that_follows_affects_no_grant_and_no_flow() {
    act(|stage| async move {
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        let alice = stage.alice().await;
        let before = grant(&alice).await;
        let kernel = stage.kernel(Sizes::default());
        assert_eq!(kernel.run(&syn(&before, "10.77.0.2:4711", 1), 1).unwrap().code, XDP_PASS);
        let cache = stage.directory().join("cache.json");
        let keys = || {
            let cache: serde_json::Value = serde_json::from_slice(&std::fs::read(&cache).ok()?).ok()?;
            Some(cache["keys"]["keys"].clone())
        };
        let before_rotation = keys().unwrap();
        admin::rotate_master_key(&stage.authority, false).await.unwrap();
        until("later keys of the new master key", || keys().filter(|keys| *keys != before_rotation)).await;
        assert_eq!(kernel.flows.keys().len(), 1, "the flow goes on");
        assert_eq!(kernel.run(&syn(&before, "10.77.0.2:4712", 2), 1).unwrap().code, XDP_PASS);
        let after = grant(&alice).await;
        assert_eq!(kernel.run(&syn(&after, "10.77.0.2:4713", 3), 1).unwrap().code, XDP_PASS);
    });
}

#[test]
fn a_replaced_master_key_ends_grants_and_no_flow() {
    act(|stage| async move {
        let verifier = stage.run(&[]).await;
        verifier.connected().await;
        let alice = stage.alice().await;
        let before = grant(&alice).await;
        let kernel = stage.kernel(Sizes::default());
        assert_eq!(kernel.run(&syn(&before, "10.77.0.2:4711", 1), 1).unwrap().code, XDP_PASS);
        admin::rotate_master_key(&stage.authority, true).await.unwrap();
        let after = grant(&alice).await;
        let mut nonce = 10;
        until("keys of the new master key", || {
            nonce += 1;
            (kernel.run(&syn(&after, "10.77.0.2:4712", nonce), 1).unwrap().code == XDP_PASS).then_some(())
        })
        .await;
        assert_eq!(
            kernel.run(&syn(&before, "10.77.0.2:4713", 2), 1).unwrap().code,
            XDP_DROP,
            "its key is worth nothing"
        );
        assert_eq!(kernel.flows.keys().len(), 2, "the flow that was admitted before goes on");
    });
}

//! The figures of three papers, as published, for comparison with those of a run.

/// A published value of a paper, with the name of its measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The name of the published measurement.
    pub name: &'static str,
    /// The value, as the paper prints it.
    pub value: &'static str,
}

/// Short names and titles of the papers.
pub const PAPERS: [(&str, &str); 3] = [
    ("OSLV", "Khanvilkar, Khokhar: Virtual Private Networks: An Overview with Performance Evaluation (2004)"),
    ("CSRA", "Bollinger: Choosing Secure Remote Access Technologies (2004)"),
    ("LS", "Liu, Shue: Avoiding VPN Bottlenecks: Exploring Network-Level Client Identity Validation Options (2022)"),
];

/// OSLV, the text about Figure 3: how tunnels over UDP compare with tunnels over TCP. The figure itself shows only
/// bars.
pub const OSLV_FIGURE_3: [Published; 4] = [
    Published { name: "overhead of UDP tunnels", value: "50 % lower" },
    Published { name: "bandwidth of UDP tunnels", value: "at least 80 % higher" },
    Published { name: "latency of UDP tunnels", value: "40 to 60 % lower" },
    Published { name: "jitter of UDP tunnels", value: "40 to 60 % lower" },
];

/// OSLV, Figure 3: what the paper's text says about each panel of the figure.
pub const OSLV_PANELS: [Published; 4] = [
    Published {
        name: "a, overhead",
        value: "at least 80 bytes per packet; less in proprietary solutions than in others",
    },
    Published { name: "b, bandwidth", value: "the best, Cipe, used less than half of the link" },
    Published { name: "c, latency", value: "lowest with FreeS/WAN, which is in the kernel" },
    Published { name: "d, jitter", value: "lowest with FreeS/WAN" },
];

/// The content that OSLV's Tables 2 and 3 would have today, according to the programs' documentation. Each row has a
/// family of solutions, how its ciphers are chosen, and how its routes are set.
pub const TODAY: [(&str, &str, &str); 19] = [
    ("Vouchsafe", "fixed list; by rule", "none needed; the server's own address"),
    ("fwknop", "AES, or GnuPG's", "none needed; the server's own address"),
    ("WireGuard", "one, fixed by the protocol", "by each peer's allowed addresses"),
    ("OpenVPN", "any of the TLS library's; by configuration", "pushed by the server"),
    ("IPsec", "any of the kernel's or library's; negotiated", "by traffic selectors, narrowed by the server"),
    ("OpenConnect", "any of the TLS library's; negotiated", "pushed by the server"),
    ("Tailscale", "one, fixed by the protocol", "announced by nodes, approved at the control server"),
    ("SoftEther", "any of the TLS library's; by configuration", "by DHCP, or by hand"),
    ("tinc", "any of the library's; by configuration", "found by the mesh itself"),
    ("VXLAN", "none", "by hand, or by a routing daemon"),
    ("GENEVE", "none", "by hand, or by a routing daemon"),
    ("fastd", "fixed list; by configuration", "by scripts, or by a routing daemon above it"),
    ("Nebula", "AES-GCM or ChaCha20; for the whole network", "in certificates and configuration"),
    ("n2n", "fixed list; by option", "by hand"),
    ("vtun", "fixed list; by configuration", "by scripts when the link comes up"),
    ("QuickTun", "one, fixed by the protocol; or none", "by a script when the device is there"),
    ("SSH", "fixed list; negotiated", "by hand"),
    ("TLS", "any of the TLS library's; negotiated", "by hand"),
    ("L2TP", "none of its own", "by PPP, or by hand"),
];

/// OSLV, beside Figure 3: the solutions with the best mean rank at equal weights.
pub const OSLV_BEST: &str = "VTUN, PPTP and FreeS/WAN";

/// The rows of OSLV's Table 4: the solution, and whether it has confidentiality, integrity, authentication, and
/// protection against replay.
pub const OSLV_TABLE_4: [(&str, [bool; 4]); 10] = [
    ("Vpnd", [true, true, true, false]),
    ("Htun", [false, false, false, false]),
    ("Cipe", [true, true, false, false]),
    ("PPTP", [true, true, false, true]),
    ("L2tpd", [false, false, false, true]),
    ("OpenVPN", [true, true, true, true]),
    ("VTUN", [true, false, false, false]),
    ("VTUN_PPP", [true, false, false, false]),
    ("Tinc", [true, true, true, true]),
    ("Yavipin", [true, true, false, true]),
];

/// OSLV's Table 1: solution, version, whether it is an Internet standard, cipher and MAC.
pub const OSLV_TABLE_1: [(&str, &str, bool, &str); 14] = [
    ("PPP_over_SSH", "-", true, "bf-cbc/md5 and others of SSH"),
    ("Stunnel", "4.04", false, "3des/sha1 and others of OpenSSL"),
    ("AmritaVPN", "0.96", false, "fixed"),
    ("LinVPN", "2.6-pre1", false, "fixed"),
    ("Vpnd", "1.1", false, "bf-cbc / md5, sha1, ripemd160"),
    ("Htun", "0.9.5", false, "none"),
    ("Cipe", "1.5.4", false, "bf-cbc, idea / none"),
    ("PPTP", "1.2.0", true, "MPPE"),
    ("L2tpd", "0.69", true, "none"),
    ("OpenVPN", "1.4.2", false, "bf-cbc/md5 and others of OpenSSL"),
    ("VTUN", "2.6", false, "bf-cbc/md5"),
    ("Tinc", "CABAL", false, "bf-cbc/md5 and others of OpenSSL"),
    ("Yavipin", "0.9.5", false, "bf-cbc, des-cbc / md5"),
    ("FreeS/WAN", "2.01", true, "3des-cbc"),
];

/// OSLV's Table 2: how hard it is to add a cipher.
pub const OSLV_TABLE_2: [(&str, &str); 3] = [
    ("low", "Stunnel, AmritaVPN, LinVPN, OpenVPN, Tinc"),
    ("medium", "PPP_over_SSH, Cipe, Vpnd, Yavipin, VTUN, VTUN_PPP"),
    ("high", "FreeS/WAN, PPTP, L2TPd, Htun"),
];

/// OSLV's Table 3: how routes are set.
pub const OSLV_TABLE_3: [(&str, &str); 4] = [
    ("by hand", "PPP_over_SSH, Stunnel, L2tpd, Htun"),
    ("by scripts when the link comes up", "OpenVPN, LinVPN, Yavipin, VTUN, VTUN_PPP, PPTPd"),
    ("in configuration files", "Cipe, AmritaVPN, FreeS/WAN, Vpnd"),
    ("automatically", "Tinc"),
];

/// OSLV's Table 5: for each program, the formula for the total effort of a full mesh of N nodes, and the value that the
/// paper prints for N = 10.
pub const OSLV_TABLE_5: [(&str, &str, u32); 14] = [
    ("PPP_over_SSH", "N(3N - 2)", 280),
    ("Stunnel", "N(4N - 3)", 370),
    ("AmritaVPN", "N(2N - 1)", 190),
    ("LinVPN", "N(4N - 3)", 370),
    ("Vpnd", "N(3N - 3)", 370),
    ("Htun", "N(4N - 2)", 480),
    ("Cipe", "N(2N - 1)", 190),
    ("PPTP", "N(5N - 2)", 480),
    ("L2tpd", "N(2.5N)", 250),
    ("OpenVPN", "N(2N - 1)", 190),
    ("VTUN_*", "N(2(N - 1))", 180),
    ("Tinc", "N(4)", 40),
    ("Yavipin", "N(4N - 3)", 370),
    ("FreeS/WAN", "N(2N)", 200),
];

/// CSRA's Table 1: for each medium, the published protocols for encryption and for authentication, and the protocols
/// that have replaced them.
pub const CSRA_TABLE_1: [(&str, &str, &str, &str, &str); 4] = [
    (
        "Dial-up",
        "IPSec",
        "PAP, CHAP, MS-CHAP, EAP",
        "a tunnel or TLS over any access network",
        "the access network's own",
    ),
    (
        "Ethernet/LAN",
        "IPSec",
        "EAP, EAP-TLS, 802.1x",
        "MACsec (802.1AE); TLS 1.3 between applications",
        "802.1X with EAP-TLS",
    ),
    (
        "Wireless",
        "WEP, WPA, 802.11i",
        "EAP, LEAP, EAP-FAST, EAP-TLS, 802.1x",
        "WPA3 (AES-GCM)",
        "SAE; 802.1X with EAP-TLS",
    ),
    (
        "VPN",
        "IPSec, IKE",
        "Xauth, 802.1x, EAP-TLS",
        "IKEv2 with AES-GCM, WireGuard, TLS 1.3 and DTLS",
        "certificates, OpenID Connect, passkeys",
    ),
];

/// CSRA's Tables 2 and 3: throughput in Kb/s, in runs of 30 s, and in runs of 10 min with a new key every 120 s.
pub const CSRA_TABLES_2_3: [(&str, f64, f64); 4] = [
    ("DES, SHA-1", 674.868, 676.18),
    ("3DES, SHA-1", 677.003, 669.94),
    ("DES, SHA-1, forward secrecy", 683.22, 661.57),
    ("3DES, SHA-1, forward secrecy", 684.797, 663.11),
];

/// LS, Figures 3 and 4: 90th percentiles of times, in ms. The first value is for two round trips to the controller. The
/// second value is for a first packet with a controller that only forwards. The third value is for a first packet with
/// the complete method.
pub const LS_FIGURES_3_4: [(&str, [f64; 3]); 4] = [
    ("3a: key transfer, router's switch", [83.0, 86.0, 87.0]),
    ("3b: key transfer, client's switch", [83.0, 82.0, 83.0]),
    ("4a: validation, router's switch", [82.0, 90.0, 93.0]),
    ("4b: validation, client's switch", [82.0, 84.0, 86.0]),
];

/// LS, the text about Figure 5: rates of downloads, with and without tunnels and tokens.
pub const LS_FIGURE_5: [Published; 5] = [
    Published { name: "direct TLS, five clients", value: "21.6 MB/s each" },
    Published { name: "IPsec server, five clients", value: "7.4 MB/s each, about 65 % less" },
    Published { name: "tokens by the client, against IPsec", value: "2.5 to 2.9 times" },
    Published { name: "tokens by the client, against direct", value: "1 to 8 % less" },
    Published { name: "tokens by a home router, one client", value: "12.8 MB/s" },
];

/// LS, section 5.4: number of header bytes that the shim, or L2TP with IPsec, adds to a packet.
pub const LS_HEADERS: [Published; 3] = [
    Published { name: "L2TP with IPsec, each packet", value: "92" },
    Published { name: "shim, first packet of a flow", value: "60" },
    Published { name: "shim, later packets", value: "0" },
];

/// LS, Table 1: number of requests admitted, out of 20 without a token, 20 with a wrong token, and 20 with a valid
/// token.
pub const LS_TABLE_1: [(&str, u32); 3] = [("no token", 0), ("invalid token", 0), ("valid token", 20)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_efforts_for_ten_nodes_are_kept_even_where_the_formula_disagrees() {
        let of = |formula: &str| -> u32 {
            match formula {
                "N(3N - 2)" => 280,
                "N(4N - 3)" => 370,
                "N(2N - 1)" => 190,
                "N(3N - 3)" => 270,
                "N(4N - 2)" => 380,
                "N(5N - 2)" => 480,
                "N(2.5N)" => 250,
                "N(2(N - 1))" => 180,
                "N(4)" => 40,
                "N(2N)" => 200,
                other => panic!("{other}"),
            }
        };
        let differ: Vec<_> =
            OSLV_TABLE_5.iter().filter(|(_, formula, ten)| of(formula) != *ten).map(|row| row.0).collect();
        assert_eq!(differ, ["Vpnd", "Htun"], "the paper prints 370 and 480 for these");
    }
}

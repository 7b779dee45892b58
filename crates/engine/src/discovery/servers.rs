//! The servers of an authority, as SRV records list them (RFC 2782, wire.md §7.3). An attacker can forge these records.
//! They only say where a client connects: the authority proves by its certificate that it has the name for which the
//! client looked up the records.

use super::domain::Domain;
use super::record::AuthorityUrl;
use std::fmt::Write;

/// Maximum number of servers of one name that a client tries.
pub const SERVERS_MAX: usize = 16;

/// A server that an SRV record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The host's name.
    pub host: Domain,
    /// The TCP port.
    pub port: u16,
    /// Clients try the servers with the lowest number first.
    pub priority: u16,
    /// The relative number of clients that this server gets, among servers of the same priority.
    pub weight: u16,
}

impl Server {
    /// Returns the server of a URL, with priority 0 and weight 1, so that all servers made from URLs are equal. Returns
    /// `None` if the URL's host is an address, because SRV records contain names.
    pub fn of(url: &AuthorityUrl) -> Option<Self> {
        let (host, port) = url.name_and_port()?;
        Some(Self { host: host.clone(), port, priority: 0, weight: 1 })
    }
}

/// Puts servers into the order in which a client tries them, and returns at most [`SERVERS_MAX`] of them. Among servers
/// of the same priority, the probability that a server comes first is its share of their weights. The next servers are
/// drawn from the remaining ones in the same way. `draw` returns a random number for each server. If `draw` always
/// returns the same number for the same server, the order stays the same. A process then comes back to the server at
/// which it began.
pub fn in_order(servers: Vec<Server>, draw: impl Fn(&Server) -> u64) -> Vec<Server> {
    let ranked = servers.into_iter().map(|server| {
        let drawn = draw(&server);
        // If `part` is uniform between 0 and 1, this rank is exponential with the rate `weight`. The probability that
        // it is the least of several such ranks is proportional to the weight.
        let part = ((drawn >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let rank = if server.weight == 0 { f64::INFINITY } else { -part.ln() / f64::from(server.weight) };
        (rank, drawn, server)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by(|(rank, drawn, server), (other_rank, other_drawn, other)| {
        let by_priority = server.priority.cmp(&other.priority);
        by_priority.then(rank.total_cmp(other_rank)).then(drawn.cmp(other_drawn))
    });
    let mut ordered: Vec<_> = ranked.into_iter().map(|(_, _, server)| server).collect();
    ordered.dedup();
    ordered.truncate(SERVERS_MAX);
    ordered
}

/// Returns the lines of a zone file by which DNS lists these servers for the authority that has the name `name`.
pub fn zone_lines(name: &Domain, servers: &[Server], ttl: u32) -> String {
    let mut lines = String::new();
    for Server { host, port, priority, weight } in servers {
        let _ = writeln!(lines, "{}. {ttl} IN SRV {priority} {weight} {port} {host}.", name.service_name());
    }
    lines
}

/// Reports whether two texts name the same authority. Each text is a URL, or a name for which DNS lists servers.
pub fn name_the_same(one: &str, other: &str) -> bool {
    let canonical = |text: &str| match text.contains("://") {
        true => text.parse().ok().map(|url: AuthorityUrl| url.as_str().to_owned()),
        false => text.parse().ok().map(|name: Domain| name.as_str().to_owned()),
    };
    match (canonical(one), canonical(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    fn server(host: &str, priority: u16, weight: u16) -> Server {
        Server { host: host.parse().unwrap(), port: 8443, priority, weight }
    }

    /// Returns the hosts in the order that one process draws.
    fn hosts(servers: &[Server], process: u64) -> Vec<String> {
        let draws = BuildHasherDefault::<DefaultHasher>::default();
        let ordered = in_order(servers.to_vec(), |server| draws.hash_one((process, server.host.as_str())));
        ordered.into_iter().map(|server| server.host.to_string()).collect()
    }

    #[test]
    fn priorities_come_first_and_weights_are_shares() {
        let servers =
            [server("far.org", 20, 60_000), server("a.org", 10, 3), server("b.org", 10, 1), server("last.org", 10, 0)];
        let mut firsts = 0;
        for process in 0..4000 {
            let order = hosts(&servers, process);
            assert_eq!(order[2..], ["last.org", "far.org"], "process {process}");
            assert_eq!(order, hosts(&servers, process), "a process draws once");
            firsts += usize::from(order[0] == "a.org");
        }
        assert!((2850..3150).contains(&firsts), "{firsts} of 4000 processes begin at the server with 3 of 4 shares");
        for process in 0..400 {
            assert_eq!(hosts(&servers[1..3], process), hosts(&servers, process)[..2], "other servers change nothing");
        }
    }

    #[test]
    fn equal_records_count_once_and_few_are_tried() {
        let many: Vec<_> = (0..100).map(|number| server(&format!("a{number}.org"), 0, 1)).collect();
        assert_eq!(hosts(&many, 1).len(), SERVERS_MAX);
        assert_eq!(hosts(&[server("a.org", 0, 1), server("a.org", 0, 1)], 1), ["a.org"]);
    }

    #[test]
    fn servers_are_written_as_lines_of_a_zone_file() {
        let url = |text: &str| Server::of(&text.parse().unwrap());
        let servers = [url("https://a.example.org:8443").unwrap(), url("https://b.example.org").unwrap()];
        assert_eq!(
            zone_lines(&"example.org".parse().unwrap(), &servers, 300),
            "_vouchsafe._tcp.example.org. 300 IN SRV 0 1 8443 a.example.org.\n\
             _vouchsafe._tcp.example.org. 300 IN SRV 0 1 443 b.example.org.\n"
        );
        assert_eq!(url("https://192.0.2.1:8443"), None);
    }

    #[test]
    fn an_authority_has_one_name_and_one_url() {
        assert!(name_the_same("Example.org.", "example.org") && name_the_same("https://a.org/", "https://A.org:443"));
        for other in ["https://example.org", "example.net", "www.example.org"] {
            assert!(!name_the_same("example.org", other), "{other}");
        }
    }
}

//! The measured quantities: names, units, and whether a larger or a smaller value is better.

use serde::{Deserialize, Serialize};

/// The better one of two different values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// A larger value.
    More,
    /// A smaller value.
    Less,
}

/// The aspect of a solution that a quantity describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attribute {
    /// Speed of transfers.
    Throughput,
    /// Delay and its variation.
    Latency,
    /// Processor time, and memory.
    Cpu,
    /// Bytes added to packets, and payload that no longer fits into them.
    Overhead,
    /// Behaviour on bad paths and after changes.
    Resilience,
    /// Work for the administrator.
    Effort,
}

impl Attribute {
    /// All attributes, in the order of the report.
    pub const ALL: [Self; 6] =
        [Self::Throughput, Self::Latency, Self::Cpu, Self::Overhead, Self::Resilience, Self::Effort];

    /// Returns the name that reports and files of weights use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Cpu => "cpu",
            Self::Overhead => "overhead",
            Self::Resilience => "resilience",
            Self::Effort => "effort",
        }
    }
}

macro_rules! quantities {
    ($($variant:ident $name:literal $unit:literal $better:ident $attribute:ident $title:literal;)*) => {
        /// A quantity that is measured of every solution.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Quantity {
            $(#[doc = $title] #[serde(rename = $name)] $variant,)*
        }

        impl Quantity {
            /// All quantities, in the order of the report.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name in files and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the name that reports and commands show.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title),* }
            }

            /// Returns the unit of the quantity's values.
            pub const fn unit(self) -> &'static str {
                match self { $(Self::$variant => $unit),* }
            }

            /// Returns whether a larger or a smaller value is better.
            pub const fn better(self) -> Better {
                match self { $(Self::$variant => Better::$better),* }
            }

            /// Returns the attribute to which the quantity belongs.
            pub const fn attribute(self) -> Attribute {
                match self { $(Self::$variant => Attribute::$attribute),* }
            }
        }
    };
}

quantities! {
    TcpUp "tcp_up" "Mbit/s" More Throughput "one TCP stream, to the server";
    TcpDown "tcp_down" "Mbit/s" More Throughput "one TCP stream, from the server";
    TcpUp5 "tcp_up_5" "Mbit/s" More Throughput "five TCP streams, to the server";
    TcpDown5 "tcp_down_5" "Mbit/s" More Throughput "five TCP streams, from the server";
    UdpFree "udp_free" "Mbit/s" More Throughput "UDP without loss, 1200-byte payloads";
    SmallRate "small_rate" "packets/s" More Throughput "UDP without loss, 64-byte payloads";
    Exchanges "exchanges" "exchanges/s" More Latency "request and response over one TCP connection";
    RttIdle "rtt_idle" "µs" Less Latency "round trip on an idle path";
    JitterIdle "jitter_idle" "µs" Less Latency "jitter on an idle path";
    RttLoad "rtt_load" "µs" Less Latency "round trip beside a TCP stream";
    JitterLoad "jitter_load" "µs" Less Latency "jitter beside a TCP stream";
    CpuClient "cpu_client" "s/GB" Less Cpu "processor time of the solution's processes, client";
    CpuServer "cpu_server" "s/GB" Less Cpu "processor time of the solution's processes, server";
    CpuMachine "cpu_machine" "s/GB" Less Cpu "processor time of the whole machine, both ends with kernels and test programs";
    MemoryClient "memory_client" "MB" Less Cpu "memory of the idle client's processes";
    MemoryServer "memory_server" "MB" Less Cpu "memory of the server's processes with one idle client";
    WireFirst "wire_first" "bytes" Less Overhead "bytes added to the first packet of a flow";
    WireLater "wire_later" "bytes" Less Overhead "bytes added to later packets, mean over 16 lengths";
    KeepAlive "keep_alive" "bytes/s" Less Overhead "bytes on the wire while nothing is sent";
    Mtu "mtu" "bytes" More Overhead "largest IP packet that arrives whole";
    UdpLoss "udp_loss" "%" Less Resilience "datagrams lost at 10 Mbit/s on a clean path";
    TcpLossy5 "tcp_lossy_5" "Mbit/s" More Resilience "five TCP streams, 10 ms each way and 2 % loss";
    TcpLong5 "tcp_long_5" "Mbit/s" More Resilience "five TCP streams, 10 ms each way";
    TcpReorder5 "tcp_reorder_5" "Mbit/s" More Resilience "five TCP streams, 10 ms each way, 2 % of packets overtaken";
    UdpLossyDelay "udp_lossy_delay" "ms" Less Resilience "delay of the slowest twentieth of datagrams at 2 % loss";
    Connect "connect" "ms" Less Resilience "from the start of the client to the first answer";
    Reconnect "reconnect" "ms" Less Resilience "from the restart of the server to the first answer";
    Roam "roam" "ms" Less Resilience "from a change of the client's address to the first answer";
    EffortTen "effort_ten" "steps" Less Effort "files, keys and commands for ten clients";
    EffortNext "effort_next" "steps" Less Effort "files, keys and commands for one client more";
}

impl Quantity {
    /// Reports whether the value is counted rather than timed, so that a single sample is exact.
    pub const fn is_counted(self) -> bool {
        matches!(self.attribute(), Attribute::Effort) || matches!(self, Self::WireFirst | Self::WireLater | Self::Mtu)
    }

    /// Returns the quantity with this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|quantity| quantity.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_same_in_files() {
        for quantity in Quantity::ALL {
            assert_eq!(Quantity::named(quantity.name()), Some(*quantity));
            assert_eq!(serde_json::to_value(quantity).unwrap(), quantity.name());
        }
    }

    #[test]
    fn every_attribute_has_a_quantity() {
        for attribute in Attribute::ALL {
            assert!(Quantity::ALL.iter().any(|quantity| quantity.attribute() == attribute), "{attribute:?}");
        }
    }
}

//! The authority as its clients see it: a real server, real TLS, the real client.

mod api;
mod approval;
mod asking;
mod audit;
mod backup;
mod changes;
mod cluster;
mod console;
mod dns;
mod endings;
mod granting;
mod known;
mod leases;
mod listed;
mod lists;
mod login;
mod metrics;
mod pairs;
mod policy;
mod provider;
mod reports;
mod rotation;
mod scores;
mod sealing;
mod segments;
mod stage;

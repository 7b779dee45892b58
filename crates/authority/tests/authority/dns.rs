//! Tests of the name server over real sockets, with the networks of a policy.

use crate::stage::Stage;
use authority::dns::Server;
use engine::discovery::{Answer, Domain, message};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

const SETTINGS: &str = "[dns]\ndomain = \"example.org\"\nauthority = \"https://vouch.example.org:8443\"\nzone = \"zone\"\n\
                        listen = \"127.0.0.1:0\"\n";
const ZONE: &str = "@ 60 IN SOA ns x 1 7200 900 1209600 60\n@ 60 IN NS ns\nns 60 IN A 127.0.0.1\n";
/// A number of queries that exceeds the burst of one network.
const FLOOD: usize = 200;
const LONG: Duration = Duration::from_secs(20);

async fn serve() -> (Stage, Server) {
    let stage = Stage::start().await;
    let config = stage.directory.path().join("authority.toml");
    std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + SETTINGS).unwrap();
    std::fs::write(stage.directory.path().join("zone"), ZONE).unwrap();
    let server = Server::start(stage.directory.clone(), &[]).await.unwrap();
    (stage, server)
}

fn domain() -> Domain {
    "example.org".parse().unwrap()
}

async fn by_tcp(server: &Server) -> Answer {
    let mut stream = TcpStream::connect(server.addresses()[0]).await.unwrap();
    let question = message::question(&domain(), 5).unwrap();
    // Send the query in two pieces, as a TCP connection may deliver it.
    stream.write_all(&(question.len() as u16).to_be_bytes()).await.unwrap();
    stream.write_all(&question).await.unwrap();
    let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut answer).await.unwrap();
    message::answer(&domain(), 5, &answer).unwrap()
}

fn protects(answer: &Answer) -> Vec<String> {
    let Answer::Record(record, 300) = answer else { panic!("{answer:?}") };
    assert_eq!(record.authority().as_str(), "https://vouch.example.org:8443");
    record.protects().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn the_record_says_what_the_policy_protects_and_follows_it() {
    let (stage, mut server) = serve().await;
    assert_eq!(protects(&by_tcp(&server).await), ["127.0.0.1/32", "203.0.113.10/32", "203.0.113.64/28"]);
    let address = server.addresses()[0];
    let running = tokio::spawn(async move { server.run().await });
    let policy = std::fs::read_to_string(stage.directory.policy()).unwrap();
    std::fs::write(stage.directory.policy(), policy.replace("203.0.113.64/28", "203.0.113.64/26")).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(address).await.unwrap();
    let follows = async {
        loop {
            socket.send(&message::question(&domain(), 6).unwrap()).await.unwrap();
            let mut answer = [0; 2048];
            let size = socket.recv(&mut answer).await.unwrap();
            match message::answer(&domain(), 6, &answer[..size]).unwrap() {
                Answer::Record(record, _) if record.covers("203.0.113.127".parse().unwrap()) => return,
                // The answer was shortened, because queries came more often than one network may send them.
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    timeout(LONG, follows).await.expect("the record follows the policy");
    running.abort();
}

#[tokio::test]
async fn a_flood_gets_a_trickle_of_answers_that_are_no_longer_than_it() {
    let (_stage, server) = serve().await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server.addresses()[0]).await.unwrap();
    let question = message::question(&domain(), 7).unwrap();
    let (mut full, mut short) = (0, 0);
    let mut answer = [0; 2048];
    let mut count = |size: usize, answer: &[u8]| match message::answer(&domain(), 7, &answer[..size]) {
        Some(Answer::Record(..)) => full += 1,
        Some(Answer::Truncated) if size <= question.len() => short += 1,
        other => panic!("{other:?} in {size} bytes"),
    };
    let begun = std::time::Instant::now();
    for _ in 0..FLOOD {
        socket.send(&question).await.unwrap();
        while let Ok(size) = socket.try_recv(&mut answer) {
            count(size, &answer);
        }
    }
    // Receive the answers that are still in flight. Dropped queries get none.
    while let Ok(size) = timeout(Duration::from_millis(500), socket.recv(&mut answer)).await {
        count(size.unwrap(), &answer);
    }
    let most = 60 + 20 * (begun.elapsed().as_secs() as usize + 1);
    assert!(full > 0 && full <= most, "{full} full answers");
    assert!(short > 0 && full + short < FLOOD, "{full} full and {short} short answers");
    // A client that is told to use TCP is served over TCP.
    assert!(!protects(&by_tcp(&server).await).is_empty());
}

//! Complaints: an application reports the misconduct of the person behind a connection, and the authority lowers the
//! person's score. A user may complain only about connections to the services for which the settings name the user.

use super::find;
use super::headers::{connection, field};
use crate::settings::Complainant;
use crate::shared::Shared;
use anyhow::{Context, Result};
use api::{COMPLAINT_POINTS_MAX, Complaint, Misconduct, Standing};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Longest time to wait for the authority.
const PATIENCE: Duration = Duration::from_secs(5);
const ABOUT: &str = "x-vouchsafe-about";
const POINTS: &str = "x-vouchsafe-points";
const SCORE: &str = "x-vouchsafe-score";

/// The users who may complain. Each comes with the service about whose connections the user may complain.
#[derive(Clone, Debug, Default)]
pub struct Complainants(Vec<(u32, String, SocketAddr)>);

impl Complainants {
    /// Looks up the users that the settings name.
    ///
    /// # Errors
    ///
    /// Fails if there is no such user, or if the user may not use the identity socket.
    pub fn new(
        named: &[Complainant],
        number: impl Fn(&str) -> Result<u32>,
        may_ask: impl Fn(u32) -> bool,
    ) -> Result<Self> {
        let user = |Complainant { user, service }: &Complainant| {
            let number = number(user).context("complainants")?;
            anyhow::ensure!(
                may_ask(number),
                "complainants: {user} may not use the identity socket: add it to `whois_users`"
            );
            Ok((number, user.clone(), *service))
        };
        named.iter().map(user).collect::<Result<_>>().map(Self)
    }

    /// Returns the name of a user who may complain about connections to this service.
    fn name(&self, user: u32, service: SocketAddr) -> Option<&str> {
        let same = |one: &SocketAddr| (one.ip().to_canonical(), one.port()) == (service.ip(), service.port());
        self.0.iter().find(|(number, _, one)| *number == user && same(one)).map(|(_, name, _)| name.as_str())
    }
}

/// Answers a complaint of this user.
pub async fn complain(shared: &Arc<Shared>, complainants: &Complainants, user: u32, headers: &HeaderMap) -> Response {
    let parsed = connection(headers).and_then(|connection| Ok((connection, about(headers)?)));
    let (connection, (about, points)) = match parsed {
        Ok(parsed) => parsed,
        Err(fault) => return (StatusCode::BAD_REQUEST, format!("{fault}\n")).into_response(),
    };
    let Some(application) = complainants.name(user, connection.server) else {
        let why = "this user may not complain about connections to this service: see `complainants` in verifier.toml\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    };
    let flow = match find(shared, connection).await {
        Ok(Some((_, flow))) => flow,
        Ok(None) => {
            let why = "no grant admitted a connection between these addresses and ports\n";
            return (StatusCode::UNAUTHORIZED, why).into_response();
        }
        Err(error) => {
            tracing::error!("cannot find the connection of a complaint: {error:#}");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let complaint = Complaint { handle: flow.handle, application: application.to_owned(), about, points };
    let done = tokio::time::timeout(PATIENCE, shared.complain(&complaint)).await;
    answer(
        done.unwrap_or_else(|_| Err(client::Error::Unreachable("the authority did not answer in time".into()))),
        application,
    )
}

/// Returns the answer to an application. An application may repeat a complaint only if the authority has refused it: a
/// complaint without an answer possibly counts.
fn answer(done: Result<Standing, client::Error>, application: &str) -> Response {
    let error = match done {
        Ok(standing) => return (StatusCode::OK, [(SCORE, standing.score.to_string())]).into_response(),
        Err(client::Error::Refused(problem)) if [404, 429].contains(&problem.status) => {
            let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
            return (status, format!("{}\n", problem.title)).into_response();
        }
        Err(error) => error,
    };
    tracing::warn!(application, "cannot pass on a complaint: {error}");
    match error {
        client::Error::Denied(_) | client::Error::NotLoggedIn | client::Error::Refused(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "the authority does not take the complaint\n").into_response()
        }
        client::Error::Unreachable(_) | client::Error::Unusable(_) | client::Error::Other(_) => {
            let why = "no answer from the authority: the complaint may count, so do not repeat it\n";
            (StatusCode::GATEWAY_TIMEOUT, why).into_response()
        }
    }
}

/// Reads what the person did, and the points to take off.
fn about(headers: &HeaderMap) -> Result<(Misconduct, Option<u32>), String> {
    let name = field(headers, ABOUT)?;
    let about = Misconduct::ALL.into_iter().find(|kind| kind.name() == name);
    let about = about.ok_or_else(|| format!("{ABOUT} must be {}", Misconduct::ALL.map(Misconduct::name).join(", ")))?;
    if !headers.contains_key(POINTS) {
        return Ok((about, None));
    }
    let points = field(headers, POINTS)?.parse().ok().filter(|points| (1..=COMPLAINT_POINTS_MAX).contains(points));
    let points = points.ok_or_else(|| format!("{POINTS} must be from 1 to {COMPLAINT_POINTS_MAX}"))?;
    Ok((about, Some(points)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    #[test]
    fn a_user_complains_about_its_own_service_only() {
        let service = |text: &str| text.parse().expect("an address");
        let named = [Complainant { user: "web".into(), service: service("192.0.2.20:443") }];
        let known = Complainants::new(&named, |_| Ok(33), |user| user == 33).expect("known");
        assert_eq!(known.name(33, service("192.0.2.20:443")), Some("web"));
        for (user, at) in
            [(33, "192.0.2.20:444"), (33, "192.0.2.21:443"), (0, "192.0.2.20:443"), (34, "192.0.2.20:443")]
        {
            assert_eq!(known.name(user, service(at)), None);
        }
        assert!(Complainants::new(&named, |_| Ok(33), |_| false).is_err());
    }

    #[test]
    fn an_application_repeats_only_what_does_not_count() {
        let status = |done| answer(done, "shop").status().as_u16();
        let (r#type, title) = (String::from("a_type"), String::from("a title"));
        let problem = |status| api::Problem { r#type: r#type.clone(), title: title.clone(), status, detail: None };
        let refused = |status| Err(client::Error::Refused(problem(status)));
        assert_eq!(status(Ok(Standing { score: 80 })), 200);
        assert_eq!([404, 429, 500].map(|of| status(refused(of))), [404, 429, 503]);
        assert_eq!(status(Err(client::Error::Unreachable("time ran out".into()))), 504, "it may have been counted");
    }

    #[test]
    fn a_complaint_says_what_the_person_did() {
        let read = |fields: &[(&'static str, &'static str)]| {
            let fields =
                fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            about(&fields.collect())
        };
        assert_eq!(read(&[(ABOUT, "failed_login")]), Ok((Misconduct::FailedLogin, None)));
        assert_eq!(read(&[(ABOUT, "abuse"), (POINTS, "20")]), Ok((Misconduct::Abuse, Some(20))));
        for wrong in
            [&[][..], &[(ABOUT, "rudeness")], &[(ABOUT, "abuse"), (POINTS, "21")], &[(ABOUT, "abuse"), (POINTS, "0")]]
        {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}

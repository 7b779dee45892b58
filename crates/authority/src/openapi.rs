//! The API's description (OpenAPI 3.1), made from the handlers that answer: a route can't be without one.

use crate::handlers;
use crate::problem::Problem;
use engine::api;
use std::collections::BTreeMap;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, Modify, OpenApi, PartialSchema, ToSchema};

/// What stands above the calls.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Vouchsafe authority",
        description = "Logs people in, issues grants, hands verifiers their keys. Errors are problem+json (RFC 9457); times are \
                       Unix seconds; byte strings are lower-case hex."
    ),
    components(schemas(api::Problem)),
    modifiers(&Bearers)
)]
pub struct Head;

struct Bearers;

impl Modify for Bearers {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let components = api.components.get_or_insert_default();
        for (name, whose) in [
            ("session", "The token that `POST /v1/login` answers with"),
            ("verifier", "The token that `POST /v1/verifiers/enrol` answers with"),
        ] {
            let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(whose)).build();
            components.add_security_scheme(name, SecurityScheme::Http(scheme));
        }
    }
}

impl IntoResponses for Problem {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let schema = Ref::from_schema_name(api::Problem::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let problem = ResponseBuilder::new()
            .description("What went wrong and the way out")
            .content("application/problem+json", content)
            .build();
        BTreeMap::from([("default".to_owned(), problem.into())])
    }
}

/// The description.
pub fn description() -> utoipa::openapi::OpenApi {
    handlers::routes().into_openapi()
}

/// The description as it is served and printed.
pub fn text() -> String {
    let mut text = description().to_pretty_json().expect("INVARIANT: a description is plain data");
    text.push('\n');
    text
}

/// A handle in a path: 16 hex digits.
pub struct HandleText;

impl PartialSchema for HandleText {
    fn schema() -> RefOr<utoipa::openapi::Schema> {
        let text = utoipa::openapi::schema::Type::String;
        utoipa::openapi::ObjectBuilder::new().schema_type(text).pattern(Some("^[0-9a-fA-F]{16}$")).build().into()
    }
}

impl ToSchema for HandleText {}

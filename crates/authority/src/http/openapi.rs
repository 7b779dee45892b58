//! The OpenAPI 3.1 description of the API. It is generated from the handlers, so that no route lacks a description.

pub mod parts;

use crate::http::handlers;
use crate::http::problems::Problem;
use std::collections::BTreeMap;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

impl IntoResponses for Problem {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let schema = Ref::from_schema_name(api::Problem::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let problem = ResponseBuilder::new()
            .description("The reason of the failure, and how to solve it")
            .content("application/problem+json", content)
            .build();
        BTreeMap::from([("default".to_owned(), problem.into())])
    }
}

/// Returns the OpenAPI description of the API.
pub fn description() -> utoipa::openapi::OpenApi {
    handlers::routes().into_openapi()
}

/// Returns the OpenAPI description as JSON, in the form in which it is served and printed.
pub fn text() -> String {
    let mut text = description().to_pretty_json().expect("INVARIANT: a description is plain data");
    text.push('\n');
    text
}

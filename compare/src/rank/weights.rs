//! A person's needs: weights of criteria, and musts (conditions that a solution has to meet).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use crate::claims::Feature;
use crate::quantity::{Attribute, Quantity};
use crate::record::Property;
use crate::results::Solution;

/// A criterion by which solutions are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Criterion {
    /// All quantities of an attribute, with equal weights.
    Attribute(Attribute),
    /// A single quantity.
    Quantity(Quantity),
    /// A security property that was tried.
    Property(Property),
    /// A feature that the documentation claims.
    Feature(Feature),
}

impl FromStr for Criterion {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let attribute = Attribute::ALL.into_iter().find(|one| one.name() == name).map(Self::Attribute);
        let quantity = || Quantity::named(name).map(Self::Quantity);
        let property = || Property::ALL.into_iter().find(|one| one.name() == name).map(Self::Property);
        let feature = || Feature::ALL.into_iter().find(|one| one.name() == name).map(Self::Feature);
        if let Some(found) = attribute.or_else(quantity).or_else(property).or_else(feature) {
            return Ok(found);
        }
        let attributes: Vec<_> = Attribute::ALL.iter().map(|one| one.name()).collect();
        let properties: Vec<_> = Property::ALL.iter().map(|one| one.name()).collect();
        let features: Vec<_> = Feature::ALL.iter().map(|one| one.name()).collect();
        bail!(
            "there is no criterion `{name}`; the criteria are the attributes {}, their quantities (see \
             docs/compare.md), the properties {}, and the features {}",
            attributes.join(", "),
            properties.join(", "),
            features.join(", ")
        )
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attribute(attribute) => attribute.name(),
            Self::Quantity(quantity) => quantity.name(),
            Self::Property(property) => property.name(),
            Self::Feature(feature) => feature.name(),
        })
    }
}

/// A condition that a solution has to meet to be ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Must {
    /// The property must have been seen to hold. A property that was not tried does not count.
    Property(Property),
    /// The documentation must claim the feature.
    Feature(Feature),
}

impl Must {
    /// Reports whether a solution meets the condition.
    pub fn is_met(self, solution: &Solution) -> bool {
        match self {
            Self::Property(property) => solution.holds(property) == Some(true),
            Self::Feature(feature) => solution.claims.has(feature),
        }
    }
}

impl FromStr for Must {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name.parse()? {
            Criterion::Property(property) => Ok(Self::Property(property)),
            Criterion::Feature(feature) => Ok(Self::Feature(feature)),
            _ => bail!(
                "`{name}` is not a property that a solution has or lacks: give it a weight, but do not name it in \
                 `must`"
            ),
        }
    }
}

impl fmt::Display for Must {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Property(property) => f.write_str(property.name()),
            Self::Feature(feature) => f.write_str(feature.name()),
        }
    }
}

/// A person's needs: the weights of criteria, and the conditions that a solution has to meet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    weights: BTreeMap<Criterion, f64>,
    musts: Vec<Must>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    weights: BTreeMap<String, f64>,
    #[serde(default)]
    must: Vec<String>,
}

impl Weights {
    /// Sets the weight of a criterion.
    ///
    /// # Errors
    ///
    /// Fails if the weight is negative, infinite or not a number.
    pub fn set(&mut self, criterion: Criterion, weight: f64) -> Result<()> {
        ensure!(weight.is_finite() && weight >= 0.0, "the weight of {criterion} is {weight}: it must be 0 or more");
        self.weights.insert(criterion, weight);
        Ok(())
    }

    /// Adds a must, a condition that a solution has to meet.
    pub fn require(&mut self, must: Must) {
        self.musts.push(must);
    }

    /// Reads a TOML document with a table `weights` and a list `must`.
    ///
    /// # Errors
    ///
    /// Fails if the document is malformed, names an unknown criterion, has a must that is neither a property nor a
    /// feature, has a weight that [`Self::set`] refuses, or has no positive weight.
    pub fn read(text: &str) -> Result<Self> {
        let document: Document = toml::from_str(text)?;
        let mut this = Self::default();
        for (name, weight) in document.weights {
            this.set(name.parse()?, weight)?;
        }
        for name in document.must {
            this.require(name.parse()?);
        }
        ensure!(this.positive().next().is_some(), "no criterion has a weight above 0");
        Ok(this)
    }

    /// Returns the criteria with a weight above 0.
    pub fn positive(&self) -> impl Iterator<Item = (Criterion, f64)> {
        self.weights.iter().map(|(criterion, weight)| (*criterion, *weight)).filter(|(_, weight)| *weight > 0.0)
    }

    /// Returns the musts: the conditions that a solution has to meet.
    pub fn musts(&self) -> impl Iterator<Item = Must> {
        self.musts.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_criterion_is_read_by_the_name_that_it_is_shown_with() {
        let all = Attribute::ALL.map(Criterion::Attribute).into_iter();
        let all = all.chain(Quantity::ALL.iter().map(|one| Criterion::Quantity(*one)));
        let all = all.chain(Property::ALL.map(Criterion::Property)).chain(Feature::ALL.map(Criterion::Feature));
        for criterion in all {
            assert_eq!(criterion.to_string().parse::<Criterion>().unwrap(), criterion);
        }
    }

    #[test]
    fn faults_in_weights_are_refused() {
        for (text, part) in [
            ("[weights]\nspeed = 1\n", "no criterion `speed`"),
            ("[weights]\nlatency = -1\n", "must be 0 or more"),
            ("[weights]\nlatency = 0\n", "no criterion has a weight"),
            ("must = [\"encrypts\"]\n", "no criterion has a weight"),
            ("must = [\"latency\"]\n[weights]\ncpu = 1\n", "do not name it in `must`"),
            ("[wieghts]\n", "unknown field"),
        ] {
            let error = format!("{:#}", Weights::read(text).unwrap_err());
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert!(Weights::read("must = [\"encrypts\", \"payload_hidden\"]\n[weights]\ncpu = 1\ntcp_up = 2\n").is_ok());
    }
}

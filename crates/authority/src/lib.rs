//! The authority: logs people in, evaluates policy, issues grants, hands out keys.

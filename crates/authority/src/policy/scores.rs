//! Scores of people, which applications lower by complaints. When a score falls below the bound or recovers, the
//! authority evaluates the person's grants again, because rules can name people with a low score by the tag
//! `low-score`.

use super::Enforcer;
use crate::http::problems::Problem;
use crate::storage::{Complained, NewComplaint, Storage};
use crate::{Settings, now};
use anyhow::Result;
use api::{COMPLAINT_POINTS_MAX, Complaint, Standing};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use wire::Handle;

/// Maximum time that the answer to a complaint waits for the grants to be evaluated. An application that got no answer
/// could not know whether its complaint counts.
const PATIENCE: Duration = Duration::from_secs(2);

/// Keeps people's scores. Clones share everything.
#[derive(Clone)]
pub struct Scores {
    pub(crate) settings: Arc<Settings>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) enforcer: Arc<Enforcer>,
    /// Locked while grants are being evaluated because a score became low or is no longer low.
    pub(crate) evaluating: Arc<Mutex<()>>,
}

impl Scores {
    /// Lowers the score of the person behind a grant of this verifier. If the score falls below the bound, the
    /// authority revokes the grants that the policy then forbids. The function waits at most two seconds for this. The
    /// revocation also completes if the caller is cancelled.
    ///
    /// # Errors
    /// Fails if the complaint is malformed, the authority keeps no scores, the verifier has no such grant, the
    /// application or the verifier has reached its limit on complaints, or the database cannot be written. The
    /// complaint does not count then.
    pub async fn complain(&self, verifier: &str, complaint: Complaint) -> Result<Standing, Problem> {
        let terms = self.settings.scores.ok_or(Problem::NotFound("score: authority.toml has no table [scores]"))?;
        let Complaint { handle, application, about, points } = complaint;
        let points = points.unwrap_or(about.points());
        if !(1..=COMPLAINT_POINTS_MAX).contains(&points) {
            return Err(Problem::Malformed(format!("`points` must be from 1 to {COMPLAINT_POINTS_MAX}")));
        }
        if application.is_empty() || application.chars().count() > 64 || application.contains(char::is_control) {
            return Err(Problem::Malformed("an application's name must have 1 to 64 printable characters".into()));
        }
        let (verifier, handle, about) = (verifier.to_owned(), Handle(handle), about.name());
        let complaint = NewComplaint { verifier, application, handle, about, points };
        let done = self.storage.call(move |database| database.complain(&complaint, terms, now())).await?;
        match done {
            Complained::Done { score, fell } => {
                if fell {
                    self.evaluate_in_time().await;
                }
                Ok(Standing { score })
            }
            Complained::NoGrant => Err(Problem::NotFound("grant of this verifier")),
            Complained::TooMany { seconds } => Err(Problem::TooMany(Duration::from_secs(seconds))),
        }
    }

    /// Ends the low scores that have recovered. If any score has become low or ceased to be low since the last
    /// evaluation, evaluates the grants again. The server calls this every second.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn follow_time(&self) -> Result<()> {
        if self.settings.scores.is_some() {
            self.settle(false).await?;
        }
        self.evaluate().await
    }

    /// Updates the stored scores to the present time and the configuration. With `all`, also updates scores that are
    /// not due.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn settle(&self, all: bool) -> Result<()> {
        let terms = self.settings.scores;
        self.storage.call(move |database| database.settle_scores(terms, all, now())).await
    }

    /// Begins to evaluate the grants in a separate task, and waits for the task for at most [`PATIENCE`]. The task goes
    /// on if the caller is cancelled. If the task fails, [`Self::follow_time`] tries again.
    async fn evaluate_in_time(&self) {
        let scores = self.clone();
        let evaluation = tokio::spawn(async move {
            if let Err(error) = scores.evaluate().await {
                tracing::error!("cannot evaluate the grants after a score fell; trying again: {error:#}");
            }
        });
        if tokio::time::timeout(PATIENCE, evaluation).await.is_err() {
            tracing::warn!("answered a complaint before the authority had revoked all grants that the complaint ends");
        }
    }

    /// Evaluates the grants again if a score has become low or is no longer low since the last evaluation. The database
    /// records whether such a change is still to be evaluated, because the caller can be cancelled at any time.
    async fn evaluate(&self) -> Result<()> {
        let _one = self.evaluating.lock().await;
        let Some(made) = self.storage.call(|database| database.unevaluated_changes()).await? else { return Ok(()) };
        self.enforcer.reevaluate("a score fell below the bound or recovered").await?;
        self.storage.call(move |database| database.note_evaluated_changes(made)).await
    }
}

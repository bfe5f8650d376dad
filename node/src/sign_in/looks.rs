//! Looks for what this node does not know, and another one may: a session that began a moment ago elsewhere. What is asked of the
//! cluster is only to be shown everything that was committed by now, so all who wait at one time share one question, and
//! who invents tokens costs the cluster one at a time, however many come. A token that nobody has is remembered: it was drawn
//! nowhere, so nobody ever will have it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Mutex as Turns;
use towline_cluster::ClusterHandle;
use towline_core::SecretHash;

use crate::auth::Recent;

/// Looks that wait at the same time: each is a request that holds its connection.
const MAX_WAITING: usize = 1_024;
/// Those of one source: it does not take the places of all others.
const MAX_WAITING_OF_SOURCE: usize = 64;
/// Tokens of nobody that are remembered: a client that does not give up shows the same one.
const MAX_NOBODYS: usize = 4_096;

/// See the module.
pub(super) struct Looks {
    /// Who has it asks the cluster; what came of the last question that was answered.
    turn: Turns<Answered>,
    waiting: Mutex<Waiting>,
    nobodys: Mutex<Recent<SecretHash, ()>>,
}

#[derive(Default)]
struct Answered {
    question: u64,
    answer: Option<Result<(), String>>,
}

#[derive(Default)]
struct Waiting {
    /// How many questions were begun.
    questions: u64,
    all: usize,
    of: HashMap<String, usize>,
}

impl Default for Looks {
    fn default() -> Self {
        let nobodys = Mutex::new(Recent::new(MAX_NOBODYS));
        Self { turn: Turns::default(), waiting: Mutex::default(), nobodys }
    }
}

/// A place among those that wait; given back when it is dropped, also by a client that goes away.
struct Place<'a> {
    looks: &'a Looks,
    source: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.looks.waiting();
        waiting.all -= 1;
        if let Some(count) = waiting.of.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                waiting.of.remove(&self.source);
            }
        }
    }
}

impl Looks {
    /// Waits until this node has applied everything that was committed when this was called.
    ///
    /// # Errors
    /// Why that cannot be said.
    pub(super) async fn catch_up(&self, cluster: &ClusterHandle, source: &str) -> Result<(), String> {
        let question = async { cluster.read(|_| ()).await.map_err(|error| error.reason) };
        self.shared(question, source).await
    }

    /// What this question comes to, or one that somebody else has begun meanwhile.
    async fn shared(&self, ask: impl Future<Output = Result<(), String>>, source: &str) -> Result<(), String> {
        let (_place, begun) = self.place(source)?;
        let mut turn = self.turn.lock().await;
        // A question that was begun after this one came shows what this one wants to see.
        if turn.question > begun
            && let Some(answer) = &turn.answer
        {
            return answer.clone();
        }
        let question = {
            let mut waiting = self.waiting();
            waiting.questions += 1;
            waiting.questions
        };
        let answer = ask.await;
        *turn = Answered { question, answer: Some(answer.clone()) };
        answer
    }

    /// A place, and how many questions were begun before.
    fn place(&self, source: &str) -> Result<(Place<'_>, u64), String> {
        let mut waiting = self.waiting();
        let of_source = waiting.of.get(source).copied().unwrap_or_default();
        if waiting.all >= MAX_WAITING || of_source >= MAX_WAITING_OF_SOURCE {
            return Err("too many tokens that this node does not know are looked for".to_owned());
        }
        waiting.all += 1;
        waiting.of.insert(source.to_owned(), of_source + 1);
        let begun = waiting.questions;
        drop(waiting);
        Ok((Place { looks: self, source: source.to_owned() }, begun))
    }

    /// Whether a token is known to be nobody's.
    pub(super) fn is_nobodys(&self, token: &SecretHash) -> bool {
        self.nobodys().get(token).is_some()
    }

    /// Remembers that a token is nobody's, as the cluster has said.
    pub(super) fn note_nobodys(&self, token: &SecretHash) {
        self.nobodys().get_or(token, || ());
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nobodys(&self) -> MutexGuard<'_, Recent<SecretHash, ()>> {
        self.nobodys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn looks_that_wait_at_the_same_time_share_a_question_that_began_after_they_came() {
        let looks = Arc::new(Looks::default());
        let (asked, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
        let look = |number: usize| {
            let (looks, asked, gate) = (Arc::clone(&looks), Arc::clone(&asked), Arc::clone(&gate));
            tokio::spawn(async move {
                let ask = async {
                    asked.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    Ok(())
                };
                looks.shared(ask, &format!("source {number}")).await
            })
        };
        let first = look(0);
        while asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // These came after the first question had begun, which may not show what they look for.
        let others: Vec<_> = (1..100).map(look).collect();
        while looks.waiting().all < 100 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        first.await.unwrap().unwrap();
        for other in others {
            other.await.unwrap().unwrap();
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        let waiting = looks.waiting();
        assert_eq!((waiting.all, waiting.of.len()), (0, 0), "all places are given back");
    }

    #[tokio::test]
    async fn a_source_has_a_bound_of_its_own_and_who_goes_away_gives_the_place_back() {
        let looks = Looks::default();
        let mut places: Vec<_> = (0..MAX_WAITING_OF_SOURCE).map(|_| looks.place("a").unwrap()).collect();
        assert!(looks.place("a").is_err());
        assert!(looks.place("b").is_ok());
        places.pop();
        assert!(looks.place("a").is_ok());
    }

    #[tokio::test]
    async fn a_question_without_an_answer_is_told_to_all_who_waited_for_it() {
        let looks = Looks::default();
        let failed = looks.shared(async { Err("no quorum".to_owned()) }, "a").await;
        assert_eq!(failed, Err("no quorum".to_owned()));
        assert_eq!(looks.shared(async { Ok(()) }, "a").await, Ok(()), "the next one asks again");
    }

    #[test]
    fn tokens_of_nobody_are_remembered_with_a_bound() {
        let looks = Looks::default();
        for number in 0..=MAX_NOBODYS {
            looks.note_nobodys(&SecretHash::of(&number.to_string()));
        }
        assert!(!looks.is_nobodys(&SecretHash::of("0")) && looks.is_nobodys(&SecretHash::of("1")));
        assert_eq!(looks.nobodys().len(), MAX_NOBODYS);
    }
}

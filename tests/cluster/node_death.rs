//! `kill -9` of each kind of node in the middle of a task. Three observers write down every event: one on the node that is
//! killed, one on a node that lives, one that hung up before the kill and resumes after it. What they saw is compared with
//! what every node reads from the log in the end.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use towline_tests::{
    Answer, Cluster, FakeModel, Gate, Observer, Plan, Seen, concatenated_text, eventually, run_cli, state_of,
    text_message, text_of_artifacts,
};

const WORKER: &str =
    "agents:\n  - { name: worker, description: Says words., instruction: Say words., replicas: all }\n";

const BEFORE: [&str; 4] = ["one ", "two ", "three ", "four "];
const AFTER: [&str; 4] = ["five ", "six ", "seven ", "eight"];

/// The promise is 3 s at the 95th percentile; a machine that builds at the same time gets some more.
const ADOPTED_WITHIN: Duration = Duration::from_secs(10);

/// How the task comes to its owner.
#[derive(Clone, Copy, PartialEq)]
enum Caller {
    /// The caller's own stream is attached to the owner.
    StreamsThroughTheOwner,
    /// The caller sent the task and reads it elsewhere.
    ReadsElsewhere,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_lost_or_doubled_when_the_owner_dies_that_leads() {
    let stage = Stage::set().await;
    let leader = stage.cluster.leader().await;
    stage.play(leader, leader, Caller::ReadsElsewhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_lost_or_doubled_when_the_owner_dies_that_follows() {
    let stage = Stage::set().await;
    let follower = stage.cluster.another_than(&[stage.cluster.leader().await]).id;
    stage.play(follower, follower, Caller::ReadsElsewhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_entry_and_owner_die_as_one_goes_on_through_another_node() {
    let stage = Stage::set().await;
    let follower = stage.cluster.another_than(&[stage.cluster.leader().await]).id;
    stage.play(follower, follower, Caller::StreamsThroughTheOwner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_lost_or_doubled_when_a_plain_follower_dies() {
    let stage = Stage::set().await;
    let leader = stage.cluster.leader().await;
    let bystander = stage.cluster.another_than(&[leader]).id;
    stage.play(leader, bystander, Caller::ReadsElsewhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_waits_for_the_end_gets_it_from_another_node() {
    let mut stage = Stage::set().await;
    let victim = stage.cluster.another_than(&[stage.cluster.leader().await]).id;
    let living = stage.cluster.another_than(&[victim]).id;
    let servers = [victim, living].map(|node| stage.cluster.node(node).url.clone()).join(",");

    let sent = {
        let servers = servers.clone();
        tokio::spawn(async move { run_cli(["send", "worker", "speak", "--wait", "--server", &servers]).await })
    };
    let task = eventually("the task to be there", || async {
        let list = stage.cluster.node(living).agent("worker").call("ListTasks", json!({})).await.unwrap();
        list["tasks"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    Observer::subscribe(stage.cluster.node(living).agent("worker").endpoint(), &task, Some(0)).saw(3).await;
    stage.cluster.kill(victim).await;
    stage.half_way.open();

    let sent = sent.await.unwrap();
    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(sent.stdout.contains("one two three four five six seven eight"), "{sent:?}");
    let got = run_cli(["task", "get", &task, "--server", &servers]).await;
    assert_eq!(got.code, 0, "a dead server is passed over: {got:?}");
}

/// A cluster, and a model that stops half-way until the kill is done. Asked again by an adopter, it says the whole.
struct Stage {
    cluster: Cluster,
    half_way: Gate,
    _model: FakeModel,
}

impl Stage {
    async fn set() -> Self {
        let half_way = Gate::closed();
        let gate = half_way.clone();
        let model = FakeModel::start(move |chat| {
            let first_half = Answer::new().words(&BEFORE);
            let first_half = if chat.repeated == 0 { first_half.wait(&gate) } else { first_half };
            first_half.words(&AFTER)
        })
        .await;
        let cluster = Cluster::start(Plan::three(model.config() + WORKER)).await;
        Self { cluster, half_way, _model: model }
    }

    async fn play(mut self, owner: u64, victim: u64, caller: Caller) {
        let endpoint = |cluster: &Cluster, node: u64| cluster.node(node).agent("worker").endpoint().to_owned();
        let message = text_message("the-message", "speak");
        let (on_victim, task) = match caller {
            Caller::StreamsThroughTheOwner => {
                let stream = Observer::send(&endpoint(&self.cluster, owner), message);
                let task = stream.task().await;
                (stream, task)
            }
            Caller::ReadsElsewhere => {
                let sent = self.cluster.node(owner).agent("worker").send_async(message).await.unwrap();
                let task = sent["id"].as_str().unwrap().to_owned();
                (Observer::subscribe(&endpoint(&self.cluster, victim), &task, Some(0)), task)
            }
        };
        assert_eq!(self.cluster.owner(&task).await, owner, "the dialled node runs the task");
        let living = self.cluster.another_than(&[victim]).id;
        let other = self.cluster.another_than(&[victim, living]).id;
        let on_living = Observer::subscribe(&endpoint(&self.cluster, living), &task, Some(0));
        let hangs_up = Observer::subscribe(&endpoint(&self.cluster, living), &task, Some(0));
        let heard = hangs_up.saw(3).await;
        hangs_up.hang_up();

        // Created, working, and a chunk for each word.
        let before = 2 + BEFORE.len();
        on_living.saw(before).await;
        on_victim.saw(before).await;
        self.cluster.kill(victim).await;
        let killed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        self.half_way.open();

        let mut killed_entry = on_victim.finished().await;
        let resumed = Observer::subscribe(&endpoint(&self.cluster, other), &task, Some(last(&killed_entry)));
        let resumes_later = Observer::subscribe(&endpoint(&self.cluster, other), &task, Some(last(&heard)));
        killed_entry.extend(resumed.finished().await);
        let mut hung_up = heard;
        hung_up.extend(resumes_later.finished().await);
        let steady = on_living.finished().await;

        self.cluster.restart(victim).await;
        for node in &self.cluster.nodes {
            let from_the_log = Observer::subscribe(node.agent("worker").endpoint(), &task, Some(0)).finished().await;
            let all: Vec<u64> = from_the_log.iter().map(|seen| seen.index).collect();
            assert_eq!(all, (1..=last(&from_the_log)).collect::<Vec<_>>(), "read through node {}", node.name);
            assert!(all.len() >= before + 3, "only {} events came after the kill", all.len() - before);
            assert_same(&killed_entry, &from_the_log, "the observer on the killed entry");
            assert_same(&steady, &from_the_log, "the observer on a living node");
            assert_same(&hung_up, &from_the_log, "the observer that resumed");

            let read = node.agent("worker").get(&task).await.unwrap();
            assert_eq!(state_of(&read), "TASK_STATE_COMPLETED");
            assert_eq!(concatenated_text(&steady), text_of_artifacts(&read));
            assert_eq!(whole_text(&read), [BEFORE.concat(), AFTER.concat()].concat());
        }
        let record = self.cluster.task(&task).await;
        let adopted_from: Vec<u64> = record.adoptions.iter().map(|adoption| adoption.from.0).collect();
        assert_eq!(adopted_from, if owner == victim { vec![victim] } else { vec![] });
        for adoption in &record.adoptions {
            let after = Duration::from_millis(adoption.at.0.saturating_sub(killed));
            println!("adopted {after:?} after the kill");
            assert!(after < ADOPTED_WITHIN, "adopted only {after:?} after the kill");
        }
    }
}

fn last(seen: &[Seen]) -> u64 {
    seen.last().map_or(0, |seen| seen.index)
}

fn assert_same(observed: &[Seen], from_the_log: &[Seen], who: &str) {
    let short = |list: &[Seen]| list.iter().map(|seen| (seen.index, seen.hash.clone())).collect::<Vec<_>>();
    if short(observed) == short(from_the_log) {
        return;
    }
    for pair in observed.iter().zip(from_the_log) {
        assert_eq!(pair.0.event, pair.1.event, "{who}: event {}", pair.0.index);
    }
    assert_eq!(short(observed), short(from_the_log), "{who}");
}

fn whole_text(task: &Value) -> String {
    let texts: BTreeMap<String, String> = text_of_artifacts(task);
    texts.into_values().collect()
}

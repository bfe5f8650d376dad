use proptest::prelude::*;

use super::*;

fn owner(number: u8) -> Principal {
    match number % 2 {
        0 => Principal::Operator,
        _ => Principal::Node(crate::NodeId(number.into())),
    }
}

fn context(number: u8) -> ContextId {
    match number % 3 {
        0 => Uuid::from_u128(u128::from(number) + 1).to_string().parse().unwrap(),
        1 => Uuid::from_u128(u128::from(number) + 1).simple().to_string().parse().unwrap(),
        _ => format!("context {number}").parse().unwrap(),
    }
}

fn stub((of, agent, conversation, at, state): (u8, u8, u8, u64, u8)) -> Stub {
    let states = [TaskState::Completed, TaskState::Failed, TaskState::Canceled];
    Stub {
        context: context(conversation),
        agent: format!("agent-{agent}").parse().unwrap(),
        owner: owner(of),
        parent: None,
        state: states[usize::from(state) % states.len()],
        at: Timestamp(at),
        generation: at,
        rest: None,
    }
}

fn stubs() -> impl Strategy<Value = Stub> {
    (0..4_u8, 0..3_u8, 0..6_u8, 0..8_u64, 0..3_u8).prop_map(stub)
}

fn id(number: u8) -> TaskId {
    // Some that differ in the byte of their shard alone.
    TaskId::from_uuid(Uuid::from_u128(u128::from(number / 4) << 8 | u128::from(number % 4)))
}

fn filters(of: &Stub) -> Vec<ListFilter> {
    let all = ListFilter::default();
    vec![
        ListFilter { agent: Some(of.agent.clone()), ..all.clone() },
        ListFilter { state: Some(of.state), ..all.clone() },
        ListFilter { state: Some(of.state), agent: Some(of.agent.clone()), ..all.clone() },
        ListFilter { context: Some(of.context.clone()), ..all.clone() },
        ListFilter { status_after: Some(of.at), ..all.clone() },
        all,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_shows_what_a_plain_map_of_stubs_shows(steps in prop::collection::vec((0..40_u8, prop::option::weighted(0.7, stubs())), 1..80)) {
        let (mut archived, mut plain) = (Archived::default(), BTreeMap::new());
        for (number, stub) in steps {
            match stub {
                Some(stub) if !plain.contains_key(&id(number)) => {
                    archived.insert(id(number), stub.clone());
                    plain.insert(id(number), stub);
                }
                Some(_) => {}
                None => prop_assert_eq!(archived.remove(id(number)), plain.remove(&id(number))),
            }
        }
        let read: Archived = rmp_serde::from_slice(&rmp_serde::to_vec_named(&archived).unwrap()).unwrap();
        for archived in [&archived, &read] {
            check(archived, &plain)?;
        }
        prop_assert_eq!(&read, &archived);
        plain.keys().for_each(|id| drop(archived.remove(*id)));
        prop_assert!(archived.is_empty() && archived.names.is_empty() && archived.numbers.is_empty());
        prop_assert!(archived.firsts.is_empty() && archived.ends.len() + archived.others.len() + archived.contexts.len() == 0);
    }
}

fn check(archived: &Archived, plain: &BTreeMap<TaskId, Stub>) -> Result<(), TestCaseError> {
    prop_assert_eq!(archived.len(), plain.len());
    for id in (0..40).map(id) {
        prop_assert_eq!(archived.get(id).map(Kept::stub), plain.get(&id).cloned());
    }
    let mut ends: Vec<(Timestamp, TaskId)> = plain.iter().map(|(id, stub)| (stub.at, *id)).collect();
    ends.sort_unstable();
    prop_assert_eq!(archived.oldest(), ends.first().copied());
    let first: Vec<TaskId> = ends.iter().take(7).map(|(_, id)| *id).collect();
    prop_assert_eq!(archived.first_ended(7), first);
    let mut ids: Vec<TaskId> = plain.keys().copied().collect();
    ids.sort_unstable_by_key(|id| (id.vshard(), *id));
    prop_assert_eq!(archived.ids_behind(None).collect::<Vec<_>>(), ids.clone());
    if let Some(middle) = ids.get(ids.len() / 2) {
        let behind = &ids[ids.len() / 2 + 1..];
        prop_assert_eq!(archived.ids_behind(Some(*middle)).collect::<Vec<_>>(), behind);
    }
    for of in plain.values() {
        for filter in filters(of) {
            for (below, owner) in [(None, None), (None, Some(&of.owner)), (Some((of.at, id(17))), Some(&of.owner))] {
                let is_selected = |(id, stub): &(&TaskId, &Stub)| {
                    owner.is_none_or(|owner| stub.owner == *owner)
                        && filter.context.as_ref().is_none_or(|context| *context == stub.context)
                        && filter.state.is_none_or(|state| state == stub.state)
                        && filter.agent.as_ref().is_none_or(|agent| *agent == stub.agent)
                        && filter.status_after.is_none_or(|after| stub.at >= after)
                        && below.is_none_or(|below| (stub.at, **id) < below)
                };
                let selected = plain.iter().filter(is_selected).map(|(id, stub)| (stub.at, *id));
                let mut selected: Vec<(Timestamp, TaskId)> = selected.collect();
                selected.sort_unstable();
                selected.reverse();
                prop_assert_eq!(archived.selected(owner, &filter, below).collect::<Vec<_>>(), selected.clone());
                if below.is_none() {
                    prop_assert_eq!(archived.count(owner, &filter), selected.len());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_a_stub_takes_in_memory_is_what_the_head_of_this_file_says() {
    assert_eq!(size_of::<(Key, Kept)>(), 64);
    assert_eq!(size_of::<(End, ())>(), 28);
    assert_eq!(size_of::<((Context, TaskId), ())>(), 20);
}

#[test]
fn the_name_of_an_owner_and_an_agent_is_kept_once() {
    let mut archived = Archived::default();
    archived.insert(id(1), stub((0, 1, 1, 1, 0)));
    archived.insert(id(2), stub((0, 1, 2, 2, 1)));
    assert!(Arc::ptr_eq(&archived.get(id(1)).unwrap().of, &archived.get(id(2)).unwrap().of));
}

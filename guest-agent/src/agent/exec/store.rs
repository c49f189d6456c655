//! The records: each request id is accepted at most once.
//!
//! Count and bytes are bounded. The oldest ended records are dropped first; the ids of dropped ones stay known, so that
//! a late repetition is refused rather than run again.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use tine_guest_agent::exec::ExecRequest;

use super::Exec;

/// Bounds of what is kept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Records, running ones included.
    pub records: usize,
    /// Output bytes over all records.
    pub output_bytes: usize,
    /// Ids remembered of dropped records; beyond it nothing new is accepted, as it might be a repetition.
    pub dropped_ids: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records: 1024,
            output_bytes: 6 << 20,
            dropped_ids: 1 << 17,
        }
    }
}

/// All records of this machine.
#[derive(Default)]
pub struct Store {
    limits: Limits,
    /// Output bytes over all records.
    held: Rc<Cell<usize>>,
    table: RefCell<Table>,
}

#[derive(Default)]
struct Table {
    records: HashMap<String, Rc<Exec>>,
    ended: VecDeque<Rc<Exec>>,
    /// Hashes of the ids: a clash (one in 2^47 at the limit) refuses a request that would have been good.
    dropped: HashSet<u64>,
}

/// What becomes of a request.
pub enum Admission {
    /// It is new: run it.
    New(Rc<Exec>),
    /// It was accepted before; this is its record.
    Known(Rc<Exec>),
    /// The id belongs to another request.
    Conflict,
    /// The id was accepted before and its record is gone.
    Dropped,
    /// As many commands run as there may be records.
    Busy,
    /// No more ids can be remembered.
    Exhausted,
}

impl Store {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Decides about a request; a new one is known from here on.
    pub fn admit(&self, request: &ExecRequest, streamed: bool) -> Admission {
        let mut table = self.table.borrow_mut();
        if let Some(exec) = table.records.get(&request.request_id) {
            let same = exec.digest == request.digest();
            return if same {
                Admission::Known(exec.clone())
            } else {
                Admission::Conflict
            };
        }
        if table.dropped.contains(&hash(&request.request_id)) {
            return Admission::Dropped;
        }
        while table.records.len() >= self.limits.records {
            if table.ended.is_empty() {
                return Admission::Busy;
            }
            if table.dropped.len() >= self.limits.dropped_ids {
                return Admission::Exhausted;
            }
            self.drop_oldest(&mut table);
        }
        let exec = Rc::new(Exec::new(request, streamed, self.held.clone()));
        table.records.insert(exec.id.clone(), exec.clone());
        Admission::New(exec)
    }

    /// The record of an id; an error says that it is gone for good.
    pub fn find(&self, id: &str) -> Result<Option<Rc<Exec>>, ()> {
        let table = self.table.borrow();
        match table.records.get(id) {
            None if table.dropped.contains(&hash(&id)) => Err(()),
            found => Ok(found.cloned()),
        }
    }

    /// All records, in no order.
    pub fn all(&self) -> Vec<Rc<Exec>> {
        self.table.borrow().records.values().cloned().collect()
    }

    /// From here on the records of now are known as those of this machine's parent.
    pub fn inherit(&self) {
        for exec in self.table.borrow().records.values() {
            exec.inherited.set(true);
        }
    }

    /// The record may be dropped from now on.
    pub fn ended(&self, exec: Rc<Exec>) {
        self.table.borrow_mut().ended.push_back(exec);
        self.fit();
    }

    /// Drops ended records, oldest first, until the output bytes fit. Returns whether they do.
    pub fn fit(&self) -> bool {
        let fits = || self.held.get() <= self.limits.output_bytes;
        if fits() {
            return true;
        }
        let mut table = self.table.borrow_mut();
        while !fits() && !table.ended.is_empty() && table.dropped.len() < self.limits.dropped_ids {
            self.drop_oldest(&mut table);
        }
        fits()
    }

    fn drop_oldest(&self, table: &mut Table) {
        let Some(exec) = table.ended.pop_front() else {
            return;
        };
        table.records.remove(&exec.id);
        table.dropped.insert(hash(&exec.id));
        exec.set_dropped();
    }
}

fn hash(id: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::super::{End, Output};
    use super::*;
    use tine_guest_agent::exec::State;

    fn request(id: &str, program: &str) -> ExecRequest {
        ExecRequest {
            request_id: id.into(),
            argv: vec![program.into()],
            ..ExecRequest::default()
        }
    }

    fn end(store: &Store, exec: &Rc<Exec>) {
        exec.set_ended(End {
            state: State::Exited,
            exit_code: Some(0),
            signal: None,
            reason: None,
            usage: None,
        });
        store.ended(exec.clone());
    }

    fn admit(store: &Store, id: &str) -> Rc<Exec> {
        match store.admit(&request(id, "true"), false) {
            Admission::New(exec) => exec,
            _ => panic!("{id} was not admitted"),
        }
    }

    #[test]
    fn same_id_same_request_is_known_and_another_request_conflicts() {
        let store = Store::default();
        let exec = admit(&store, "a");
        assert!(
            matches!(store.admit(&request("a", "true"), true), Admission::Known(known)
            if Rc::ptr_eq(&known, &exec))
        );
        assert!(matches!(
            store.admit(&request("a", "false"), false),
            Admission::Conflict
        ));
    }

    #[test]
    fn dropped_ids_are_refused_and_running_ones_never_dropped() {
        let store = Store::new(Limits {
            records: 2,
            ..Limits::default()
        });
        let a = admit(&store, "a");
        let _b = admit(&store, "b");
        assert!(matches!(
            store.admit(&request("c", "true"), false),
            Admission::Busy
        ));
        end(&store, &a);
        let _c = admit(&store, "c");
        assert!(matches!(
            store.admit(&request("a", "true"), false),
            Admission::Dropped
        ));
        assert!(store.find("a").is_err());
        assert!(store.find("b").is_ok_and(|found| found.is_some()));
        assert!(store.find("never").is_ok_and(|found| found.is_none()));
    }

    #[test]
    fn output_over_the_limit_drops_ended_records_first() {
        let store = Store::new(Limits {
            output_bytes: 100,
            ..Limits::default()
        });
        let a = admit(&store, "a");
        a.with_log(Output::Stdout, |log| log.append(&[0; 80]));
        assert!(store.fit());
        end(&store, &a);
        let b = admit(&store, "b");
        b.with_log(Output::Stdout, |log| log.append(&[0; 80]));
        assert!(store.fit());
        assert!(store.find("a").is_err());
        b.with_log(Output::Stdout, |log| log.append(&[0; 80]));
        assert!(!store.fit());
    }

    #[test]
    fn nothing_new_once_no_more_ids_can_be_remembered() {
        let store = Store::new(Limits {
            records: 1,
            dropped_ids: 1,
            ..Limits::default()
        });
        let a = admit(&store, "a");
        end(&store, &a);
        let b = admit(&store, "b");
        end(&store, &b);
        assert!(matches!(
            store.admit(&request("c", "true"), false),
            Admission::Exhausted
        ));
        assert!(matches!(
            store.admit(&request("b", "true"), false),
            Admission::Known(_)
        ));
    }
}

use super::*;
use crate::cgroup::{Hierarchies, Unified};

fn host(root: bool) -> Host {
    let unified = Unified {
        root: "/cg".into(),
        controllers: vec!["memory".to_owned()],
        own: "user".into(),
    };
    Host {
        root,
        uid: if root { 0 } else { 1000 },
        gid: if root { 0 } else { 1001 },
        landlock: Level(7),
        cgroups: Hierarchies {
            v1: [("pids".to_owned(), PathBuf::from("/cg1/pids"))].into(),
            v2: Some(unified),
        },
    }
}

fn config() -> Config {
    let mut config = Config::new("m-1".parse().unwrap(), "/opt/vmm".into(), 1000, 1001);
    config.new_pid_ns = true;
    config.arguments = vec!["--api-sock".into(), "a.sock".into()];
    config
}

fn position(steps: &[Step], what: impl Fn(&Step) -> bool) -> usize {
    let found = steps.iter().position(what);
    found.unwrap_or_else(|| panic!("the step is missing in {steps:#?}"))
}

#[test]
fn the_same_request_gives_the_same_plan() {
    let plans = [0, 1].map(|_| plan(&config(), &host(true)).unwrap().to_string());
    assert_eq!(plans[0], plans[1]);
    assert!(
        plans[0].ends_with("/vmm --id m-1 --api-sock a.sock\n"),
        "{}",
        plans[0]
    );
}

#[test]
fn rights_are_dropped_in_an_order_that_leaves_no_way_back() {
    for root in [true, false] {
        let steps = plan(&config(), &host(root)).unwrap().steps;
        let enter = position(&steps, |s| *s == Step::EnterRoot);
        // Which of the two keeps further namespaces from it.
        let none = match root {
            true => position(&steps, |s| *s == Step::Become(1000, 1001)),
            false => position(&steps, |s| *s == Step::NoNamespaces),
        };
        let drop = position(&steps, |s| *s == Step::NoCapabilities);
        let locked = position(&steps, |s| *s == Step::NoPrivileges);
        let landlock = position(&steps, |s| matches!(s, Step::Landlock(..)));
        let filter = position(&steps, |s| *s == Step::Seccomp(Mode::Filter));
        assert!(enter < none && none < drop && drop < locked && locked < landlock);
        assert!(landlock < filter && filter == steps.len() - 2);
        assert!(matches!(steps.last(), Some(Step::Execute(_))));
        assert!(matches!(steps[0], Step::CloseDescriptors { .. }));
    }
}

#[test]
fn the_process_is_in_its_cgroup_before_it_is_the_program() {
    let mut config = config();
    config.cgroup.settings = vec![
        "memory.max=1G".parse().unwrap(),
        "pids.max=9".parse().unwrap(),
    ];
    let steps = plan(&config, &host(true)).unwrap().steps;
    // Version 1 is entered, version 2 is born into.
    let entered = position(&steps, |s| matches!(s, Step::EnterGroup(_)));
    let born = position(&steps, |s| matches!(s, Step::Fork { group: Some(_), .. }));
    assert!(entered < born);
    config.new_pid_ns = false;
    let steps = plan(&config, &host(true)).unwrap().steps;
    let entries = steps.iter().filter(|s| matches!(s, Step::EnterGroup(_)));
    assert_eq!(entries.count(), 2);
}

#[test]
fn an_ordinary_user_gets_what_user_namespaces_allow_and_nothing_else() {
    let steps = plan(&config(), &host(false)).unwrap().steps;
    let own = position(&steps, |s| *s == Step::OwnUserNamespace);
    let leave = position(&steps, |s| *s == Step::LeaveMounts(MountsBy::Copy));
    let take = position(&steps, |s| matches!(s, Step::TakeRoot { .. }));
    assert!(own < leave && leave < take);
    let mut other = config();
    other.uid = 0;
    assert!(matches!(
        plan(&other, &host(false)),
        Err(PlanError::NotRoot { .. })
    ));
    let mut other = config();
    other.network = Network::Join("/run/netns/x".into());
    assert!(matches!(
        plan(&other, &host(false)),
        Err(PlanError::Network(_))
    ));
    let mut other = config();
    other.seccomp = Mode::Trace;
    assert!(matches!(plan(&other, &host(false)), Err(PlanError::Trace)));
}

#[test]
fn networks_are_shared_only_where_landlock_keeps_their_sockets_apart() {
    let network = |level| {
        let host = Host {
            landlock: level,
            ..host(true)
        };
        let steps = plan(&config(), &host).unwrap().steps;
        let find = |step: &Step| match step {
            Step::Network(_, by) => Some(*by),
            _ => None,
        };
        steps.iter().find_map(find).unwrap()
    };
    assert_eq!(network(Level::SCOPES), NetworkBy::Kept);
    assert_eq!(network(Level(5)), NetworkBy::New);
}

#[test]
fn what_no_program_can_be_called_or_given_is_refused() {
    let mut nameless = config();
    nameless.exec_file = "/".into();
    assert!(matches!(
        plan(&nameless, &host(true)),
        Err(PlanError::NoName(_))
    ));
    let mut nul = config();
    nul.arguments = vec!["a\0b".into()];
    assert!(matches!(plan(&nul, &host(true)), Err(PlanError::Nul(_))));
}

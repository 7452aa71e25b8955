//! The canonical name of each recompute choice.

use spec::Recompute;

use testing::small;

/// The parsed choice, and the text that a run with it writes.
fn resolved(text: &str) -> (Recompute, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, small().to_toml("run", "plain")).unwrap();
    let experiment = plan::expand(&file, &[format!("recompute = {text}")], &|_| None).unwrap();
    let config = experiment.points[0].config.as_ref().unwrap();
    let written = config.to_toml("run", "plain");
    let line = written.lines().find(|line| line.starts_with("recompute = ")).unwrap();
    (config.strategy.recompute, line.trim_start_matches("recompute = ").to_owned())
}

#[test]
fn each_choice_has_one_name() {
    for (said, name) in [
        ("'none'", "\"none\""),
        ("[]", "\"none\""),
        ("{ every = 1 }", "\"block\""),
        ("{ save = [] }", "\"block\""),
        ("['mlp', 'attention']", "[\"attention\", \"mlp\"]"),
        ("['norm', 'mlp', 'attention']", "[\"attention\", \"mlp\"]"),
        ("['norm', 'mlp']", "[\"mlp\", \"norm\"]"),
        ("{ every = 3 }", "{ every = 3 }"),
        ("{ segments = 2 }", "{ segments = 2 }"),
        ("{ save = ['norm', 'linear'] }", "{ save = [\"linear\", \"norm\"] }"),
        ("{ segments = 1 }", "\"none\""),
        ("{ budget = '1.5 GiB' }", "{ budget = \"1536 MiB\" }"),
        ("{ budget = 0.5 }", "{ budget = 0.5 }"),
        ("{ budget = 1 }", "{ budget = 1.0 }"),
        ("'auto'", "\"auto\""),
    ] {
        let (recompute, written) = resolved(said);
        assert_eq!(written, name, "{said}");
        assert_eq!(resolved(&written), (recompute, written), "{said}");
    }
}

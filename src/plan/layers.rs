//! Resolves the layer names and patterns of a strategy to the model's layer paths. Unknown names are errors. Equal
//! choices in different words become the same run.

use std::collections::HashSet;
use std::ptr;

use data::{TensorNaming, Weights};
use graph::{
    AdaptableLinear, Graph, GraphValue, Graphs, LayerMatches, Scope, ScopeId, TargetMatches, ValueKind, named,
};
use spec::{
    Group, KeywordEnum as _, LayerDevice, LayerPlacement, Lora, Model, Problem, RunConfig, StorageDtype,
    Strategy, Table, attach_span, group_of,
};

/// Keys, as named in errors.
const FREEZE: &str = "strategy.freeze";
const PLACE: &str = "strategy.place";
const RANK: &str = "strategy.lora.rank";
const FAMILY: &str = "model.transformer.family";
const TARGETS: &str = "strategy.lora.targets";
const TRAINED: &str = "strategy.lora.trained";

/// Replaces names by layer paths. Fails if a name matches no layer or the choice is impossible.
pub(super) fn resolve(config: RunConfig, tree: &Table) -> Result<RunConfig, Vec<Problem>> {
    check_family(&config.model, tree)?;
    let config = with_layer_paths(config, tree)?;
    check_parameter_groups(&config, tree)?;
    Ok(config)
}

/// Fails if the library's class of the model's family lacks one of its parameters.
fn check_family(model: &Model, tree: &Table) -> Result<(), Problem> {
    let Some(family) = model.transformer().and_then(|model| model.family) else { return Ok(()) };
    let needed = graph::needed(model);
    let Some(missing) = needed.iter().find(|required| required.tensors(family.naming()).is_none()) else {
        return Ok(());
    };
    let message = format!("{FAMILY} = \"{}\" has no tensor for `{}`", family.keyword(), missing.name);
    Err(attach_span(message, &[FAMILY], tree, "remove it, or name the family whose blocks these are"))
}

fn with_layer_paths(mut config: RunConfig, tree: &Table) -> Result<RunConfig, Vec<Problem>> {
    let trains = config.trains();
    let Strategy { freeze, place, lora, params, .. } = &mut config.strategy;
    if freeze.is_empty() && place.is_empty() && lora.is_none() {
        return Ok(config);
    }
    let graph = graph::build(&config.model, 1);
    freeze.sort_unstable();
    let adapters = lora.as_ref().map(|lora| adapters(&config.model, &graph, lora, *params, tree)).transpose();
    match (frozen_layers(&graph, freeze, trains, tree), placed_layers(&graph, place, tree), adapters) {
        (Ok(frozen), Ok(placed), Ok(adapters)) => {
            (*freeze, *place, *lora) = (frozen, placed, adapters);
            Ok(config)
        }
        (frozen, placed, adapters) => {
            Err([frozen.err(), placed.err(), adapters.err()].into_iter().flatten().collect())
        }
    }
}

/// Checks that every parameter group of the optimizer contains a parameter.
fn check_parameter_groups(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let groups = config.train.optimizer.groups();
    if !config.trains() || groups.iter().all(|group| group.named.is_none()) {
        return Ok(());
    }
    let graph = Graphs::of(config).full;
    // Frozen parameters count: freezing does not make the optimizer's groups wrong.
    let parameters = (0..graph.values.len()).filter(|&value| is_parameter(&graph, value));
    let names: Vec<String> = parameters.clone().map(|value| graph.full_name(&graph.values[value])).collect();
    let hidden = graph.hidden_matrices();
    let mut own = vec![false; groups.len()];
    for (name, value) in names.iter().zip(parameters) {
        own[group_of(&groups, name, hidden[value])] = true;
    }
    let owners: Vec<&Group> =
        groups.iter().zip(own).filter(|(_, own)| *own).filter_map(|(group, _)| group.named).collect();
    let owns = |named: &Group| owners.iter().any(|owner| ptr::eq(*owner, named));
    let mut named = groups.iter().filter_map(|group| group.named);
    let Some(named) = named.find(|named| !owns(named)) else { return Ok(()) };
    let key = format!("train.optimizer.{}.groups", config.train.optimizer.name());
    let pattern = &named.parameters;
    if names.iter().any(|name| named.matches(name)) {
        return Err(attach_span(
            format!(
                "the group of `{pattern}` is empty: earlier groups contain all parameters that it matches"
            ),
            &[&key],
            tree,
            "a parameter belongs to the first group that matches it: put the narrower pattern first",
        ));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let message = format!("the group of `{pattern}` matches no parameter of this model");
    Err(attach_span(message, &[&key], tree, suggest_names(&names, pattern)))
}

/// Resolves the layers of `lora`, and gives equal choices of storage one name.
fn adapters(
    model: &Model,
    graph: &Graph,
    lora: &Lora,
    params: StorageDtype,
    tree: &Table,
) -> Result<Lora, Problem> {
    let mut layers = graph::adaptable(graph);
    // All blocks have the same layers.
    let mut seen = HashSet::new();
    layers.retain(|layer| seen.insert(layer.path.clone()));
    let targeted = lora_targets(model, &layers, lora, tree)?;
    let trained = trained_layers(graph, lora, &targeted, tree)?;
    let targets = targeted.iter().map(|layer| layer.path.clone()).collect();
    let tables = lora.tables.filter(|tables| *tables != params);
    let rslora = lora.rslora && lora.rank > 1;
    Ok(Lora { targets, trained, tables, rslora, base: lora.base.beside(params), ..lora.clone() })
}

/// The linear layers of a block that LoRA adapts.
fn lora_targets<'l>(
    model: &Model,
    layers: &'l [AdaptableLinear],
    lora: &Lora,
    tree: &Table,
) -> Result<Vec<&'l AdaptableLinear>, Problem> {
    let paths: Vec<&str> = layers.iter().map(|layer| layer.path.as_str()).collect();
    if lora.targets.is_empty() {
        let message = "lora has no targets: nothing would be trained";
        return Err(attach_span(message.to_owned(), &[TARGETS], tree, suggest_names(&paths, "")));
    }
    let TargetMatches { layers: selected, unknown } =
        graph::targeted(model, layers, &lora.targets, || naming(model));
    if let Some(&unknown) = unknown.first() {
        let name = &lora.targets[unknown];
        let message = format!("lora: unknown target `{name}`: not a linear layer of this model's blocks");
        let help = match name.as_str() {
            "head" | "lm_head" | "embed_out" => {
                "adapters are in blocks; to train the head in full, use trained = [\"head\"]".to_owned()
            }
            "all" | "all_linear" => "did you mean `all-linear`?".to_owned(),
            _ => suggest_names(&paths, name),
        };
        return Err(attach_span(message, &[TARGETS], tree, help));
    }
    let targeted: Vec<&AdaptableLinear> = selected.into_iter().map(|layer| &layers[layer]).collect();
    for (index, layer) in targeted.iter().enumerate() {
        if let Some(part) = targeted[index..].iter().find(|other| layer.overlaps(other)) {
            let (whole, part) = (&layer.path, &part.path);
            return Err(attach_span(
                format!("lora targets `{whole}` and its part `{part}`"),
                &[TARGETS],
                tree,
                format!("use `{whole}` for one pair of factors, or its parts for a pair each"),
            ));
        }
    }
    let most = |layer: &AdaptableLinear| layer.in_features.min(layer.out_features);
    if let Some(layer) = targeted.iter().find(|layer| most(layer) < lora.rank) {
        let AdaptableLinear { path, in_features, .. } = layer;
        return Err(attach_span(
            format!(
                "lora.rank = {} is too large for `{path}`, whose weight is {} by {in_features}",
                lora.rank, layer.out_features
            ),
            &[RANK],
            tree,
            format!("use 1 to {}", targeted.iter().map(|layer| most(layer)).min().unwrap_or(1)),
        ));
    }
    Ok(targeted)
}

/// How the library's class of a model names its tensors. Several classes have one architecture (Llama, Phi-3): without a
/// family, that of the model's checkpoint, if it can be read.
fn naming(model: &Model) -> Option<TensorNaming> {
    let has_family = model.transformer().is_some_and(|model| model.family.is_some());
    let file = model.weights().filter(|_| !has_family);
    let stored = file.and_then(|file| Weights::open(file).ok()?.matched(&graph::needed(model)).ok());
    stored.and_then(|stored| stored.naming()).or_else(|| model.naming())
}

/// The outermost of the layers that are trained in full beside the factors.
fn trained_layers(
    graph: &Graph,
    lora: &Lora,
    targeted: &[&AdaptableLinear],
    tree: &Table,
) -> Result<Vec<String>, Problem> {
    let mut names = lora.trained.clone();
    names.sort_unstable();
    let LayerMatches { by_scope, .. } = resolve_names(graph, TRAINED, &names, tree)?;
    let is_trained = |scope: ScopeId| by_scope[scope.index()].is_some();
    for node in graph.nodes.iter().filter(|node| is_trained(node.scope)) {
        let mut parameters = node.inputs.iter().filter(|&&input| is_parameter(graph, input));
        let frozen = parameters.find(|&&input| !is_trained(graph.values[input].scope));
        if let Some(value) = frozen.map(|&input| &graph.values[input]) {
            let (layer, owner) = (path(graph, node.scope), path(graph, value.scope));
            return Err(attach_span(
                format!("`{layer}` cannot be trained by itself: it is tied to `{owner}.{}`", value.name),
                &[TRAINED],
                tree,
                format!(
                    "use trained = [\"{owner}\", \"{layer}\"]: a tied parameter is trained wherever it is used"
                ),
            ));
        }
    }
    let adapted = |scope: &Scope| {
        let inner = scope.path.strip_prefix(path(graph, scope.layer))?.trim_start_matches('.');
        let is_within = |layer: &&&AdaptableLinear| {
            inner.is_empty() || layer.path.strip_prefix(inner).is_some_and(|rest| rest.starts_with('.'))
        };
        targeted.iter().find(is_within).filter(|_| scope.block)
    };
    let scopes = graph.scopes.iter().zip((0..).map(ScopeId)).filter(|(_, id)| is_trained(*id));
    if let Some((scope, layer)) = scopes.clone().find_map(|(scope, _)| Some((scope, adapted(scope)?))) {
        return Err(attach_span(
            format!("lora trains `{}` in full and has factors in it: `{}`", scope.path, layer.path),
            &[TRAINED],
            tree,
            "a layer is trained in full or by factors: remove it from trained or from targets".to_owned(),
        ));
    }
    Ok(outermost(scopes))
}

/// The paths of selected scopes that lie in no other one.
fn outermost<'g>(scopes: impl Iterator<Item = (&'g Scope, ScopeId)> + Clone) -> Vec<String> {
    let selected: HashSet<ScopeId> = scopes.clone().map(|(_, id)| id).collect();
    let is_outermost = |scope: &Scope| scope.parent.is_none_or(|parent| !selected.contains(&parent));
    scopes.filter(|(scope, _)| is_outermost(scope)).map(|(scope, _)| scope.path.clone()).collect()
}

/// The outermost of the frozen layers.
fn frozen_layers(
    graph: &Graph,
    names: &[String],
    trains: bool,
    tree: &Table,
) -> Result<Vec<String>, Problem> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let LayerMatches { by_scope, .. } = resolve_names(graph, FREEZE, names, tree)?;
    let frozen = |scope: ScopeId| by_scope[scope.index()].is_some();
    let mut parameters = (0..graph.values.len()).filter(|&value| is_parameter(graph, value));
    if trains && parameters.all(|value| frozen(graph.values[value].scope)) {
        let message = "freeze leaves nothing to train: every parameter is in a frozen layer";
        return Err(attach_span(message.to_owned(), &[FREEZE], tree, "remove one of the layers"));
    }
    for node in graph.nodes.iter().filter(|node| frozen(node.scope)) {
        let mut parameters = node.inputs.iter().filter(|&&input| is_parameter(graph, input));
        let trained = parameters.find(|&&input| !frozen(graph.values[input].scope));
        if let Some(value) = trained.map(|&input| &graph.values[input]) {
            let (layer, owner) = (path(graph, node.scope), path(graph, value.scope));
            return Err(attach_span(
                format!(
                    "`{layer}` cannot be frozen by itself: it is tied to `{owner}.{}`, which is trained",
                    value.name
                ),
                &[FREEZE],
                tree,
                format!(
                    "freeze `{owner}` as well, or neither: a tied parameter is frozen wherever it is used"
                ),
            ));
        }
    }
    let scopes = graph.scopes.iter().zip((0..).map(ScopeId)).filter(|(_, id)| frozen(*id));
    Ok(outermost(scopes))
}

/// The outermost layers that are placed on another device than their parents.
fn placed_layers(graph: &Graph, places: &LayerPlacement, tree: &Table) -> Result<LayerPlacement, Problem> {
    let names: Vec<String> = places.iter().map(|(name, _)| name.clone()).collect();
    let LayerMatches { by_scope, contested, .. } = resolve_names(graph, PLACE, &names, tree)?;
    for (scope, about) in contested {
        let Some(&other) = about.iter().find(|&&name| places[name].1 != places[about[0]].1) else { continue };
        let (layer, one, other) = (path(graph, scope), &places[about[0]], &places[other]);
        let word = |(name, home): &(String, LayerDevice)| format!("`{name}` on the {}", home.name());
        return Err(attach_span(
            format!("place puts `{layer}` on two devices: {} and {}", word(one), word(other)),
            &[PLACE],
            tree,
            format!("set the device of `{layer}` itself"),
        ));
    }
    let home = |scope: ScopeId| by_scope[scope.index()].map_or(LayerDevice::Device, |name| places[name].1);
    for node in &graph.nodes {
        let elsewhere = |value: &&GraphValue| home(value.scope) != home(node.scope);
        let parameters = node.inputs.iter().filter(|&&input| is_parameter(graph, input));
        if let Some(value) = parameters.map(|&input| &graph.values[input]).find(elsewhere) {
            let (layer, owner) = (path(graph, node.scope), path(graph, value.scope));
            return Err(attach_span(
                format!(
                    "place has `{owner}` on the {} and `{layer}` on the {}, but the shared parameter `{owner}.{}` \
                     cannot be on two devices",
                    home(value.scope).name(),
                    home(node.scope).name(),
                    value.name
                ),
                &[PLACE],
                tree,
                "place both on one device, or untie them with model.transformer.tied = false",
            ));
        }
    }
    let scopes = graph.scopes.iter().zip((0..).map(ScopeId));
    let own = scopes.filter(|(scope, id)| home(*id) != scope.parent.map_or(LayerDevice::Device, home));
    Ok(own.map(|(scope, id)| (scope.path.clone(), home(id))).collect())
}

fn is_parameter(graph: &Graph, value: usize) -> bool {
    matches!(graph.values[value].kind, ValueKind::Parameter { .. })
}

fn path(graph: &Graph, scope: ScopeId) -> &str {
    &graph.scopes[scope.index()].path
}

/// Resolves the names of a key. Fails if a name matches no layer.
fn resolve_names(graph: &Graph, key: &str, names: &[String], tree: &Table) -> Result<LayerMatches, Problem> {
    let found = named(&graph.scopes, names.iter().map(String::as_str));
    let Some(&unknown) = found.unknown.first() else { return Ok(found) };
    let (name, short) = (&names[unknown], key.trim_start_matches("strategy."));
    let message = format!("{short}: `{name}` is not a layer of this model");
    let paths: Vec<&str> = graph.scopes.iter().map(|scope| scope.path.as_str()).collect();
    Err(attach_span(message, &[key], tree, suggest_names(&paths, name)))
}

/// "use `blocks.0`, `blocks.1` or one of 6 others", the most similar names first.
pub(super) fn suggest_names(paths: &[&str], name: &str) -> String {
    const MOST: usize = 6;
    let mut paths = paths.to_vec();
    // Comparing takes time by the product of the lengths. Empty and very long names are not typing errors.
    if (1..=100).contains(&name.len()) {
        paths.sort_by_cached_key(|path| strsim::damerau_levenshtein(path, name));
    }
    let shown = if paths.len() == MOST + 1 { MOST + 1 } else { MOST };
    let others = paths.len().saturating_sub(shown);
    let shown: Vec<String> = paths.iter().take(shown).map(|path| format!("`{path}`")).collect();
    match (others, shown.split_last()) {
        (0, Some((last, []))) => format!("use {last}"),
        (0, Some((last, first))) => format!("use {} or {last}", first.join(", ")),
        _ => format!("use {} or one of {others} others", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn place(places: &[(&str, LayerDevice)]) -> Result<LayerPlacement, String> {
        let mut config = testing::small();
        config.strategy.place = places.iter().map(|(name, home)| ((*name).to_owned(), *home)).collect();
        let resolved = resolve(config, &Table::default()).map_err(|problems| problems[0].reason());
        resolved.map(|config| config.strategy.place)
    }

    fn freeze(names: &[&str]) -> Result<Vec<String>, String> {
        let mut config = testing::small();
        config.strategy.freeze = names.iter().map(|name| (*name).to_owned()).collect();
        let resolved = resolve(config, &Table::default()).map_err(|problems| problems[0].reason());
        resolved.map(|config| config.strategy.freeze)
    }

    #[test]
    fn freeze_is_resolved_to_outermost_layers() {
        let all = ["blocks.0", "blocks.1"].map(str::to_owned).to_vec();
        for names in [&["blocks.*"][..], &["blocks"], &["blocks.1", "blocks.0.mlp", "blocks.0"]] {
            assert_eq!(freeze(names).unwrap(), all);
        }
        assert_eq!(freeze(&["*.*.mlp", "embedding"]).unwrap(), ["embedding", "blocks.0.mlp", "blocks.1.mlp"]);
        assert_eq!(freeze(&[]).unwrap(), [""; 0]);
    }

    #[test]
    fn lora_targets_are_resolved_to_layer_paths() {
        let targets = |names: &[&str]| {
            let targets = names.iter().map(|name| (*name).to_owned()).collect();
            let mut config = testing::small();
            // At rank 1 it scales as plain LoRA does.
            config.strategy.lora = Some(Lora { rslora: true, ..Lora::new(1, 8.0, targets) });
            let resolved = resolve(config, &Table::default()).map_err(|problems| problems[0].reason());
            let lora = resolved.map(|config| config.strategy.lora.unwrap());
            assert!(lora.as_ref().map_or(true, |lora| !lora.rslora));
            lora.map(|lora| lora.targets)
        };
        let three = ["attention.qkv", "mlp.up", "mlp.out"];
        assert_eq!(targets(&["mlp", "*.qkv", "attention.qkv"]).unwrap(), three);
        // As GPT-2's class has them.
        let all = ["attention.qkv", "attention.out", "mlp.up", "mlp.out"];
        for names in [
            &["*"][..],
            &["all-linear"],
            &["c_attn", "c_proj", "c_fc"],
            &["attn.c_attn", "attention.out", "mlp"],
        ] {
            assert_eq!(targets(names).unwrap(), all);
        }
        // Parts by this program's names only: the class has no such modules.
        assert_eq!(targets(&["attention.v", "attention.q"]).unwrap(), ["attention.q", "attention.v"]);
        assert!(targets(&["q_proj"]).is_err());
        assert_eq!(
            targets(&["attention.w"]).unwrap_err(),
            "lora: unknown target `attention.w`: not a linear layer of this model's blocks; use `attention.q`, \
             `attention.k`, `attention.v`, `attention.qkv`, `attention.out`, `mlp.out` or `mlp.up`"
        );
        assert!(
            targets(&["*.qkv", "attention.q"]).unwrap_err().contains("targets `attention.qkv` and its part")
        );
    }

    #[test]
    fn place_lists_only_layers_on_another_device_than_their_parent() {
        use LayerDevice::{Device, Host};
        let mlp = |block: usize| (format!("blocks.{block}.mlp"), Host);
        assert_eq!(place(&[("blocks.*.mlp", Host), ("blocks.0", Device)]).unwrap(), [mlp(0), mlp(1)]);
        let within = [("blocks.1.attention", Device), ("blocks", Host), ("blocks.0", Device)];
        let expected = [("blocks.1".to_owned(), Host), ("blocks.1.attention".to_owned(), Device)];
        assert_eq!(place(&within).unwrap(), expected);
        assert_eq!(place(&[("*", Device)]).unwrap(), []);
        let all = place(&[("*", Host)]).unwrap();
        assert_eq!(
            all.iter().map(|(layer, _)| layer.as_str()).collect::<Vec<_>>(),
            ["embedding", "blocks.0", "blocks.1", "head"]
        );
    }

    #[test]
    fn place_errors_suggest_what_to_write() {
        use LayerDevice::{Device, Host};
        assert!(place(&[("tail", Host)]).unwrap_err().contains("place: `tail` is not a layer"));
        let tied = place(&[("embedding", Host)]).unwrap_err();
        assert!(tied.contains("shared parameter `embedding.table`") && tied.contains("place both"), "{tied}");
        assert!(place(&[("embedding", Host), ("head", Host)]).is_ok());
        assert_eq!(
            place(&[("blocks.*", Host), ("*.1", Device)]).unwrap_err(),
            "place puts `blocks.1` on two devices: `blocks.*` on the host and `*.1` on the device; set the device of \
             `blocks.1` itself"
        );
        assert!(place(&[("blocks.*", Host), ("*.1", Host)]).is_ok());
    }

    #[test]
    fn freeze_errors_suggest_what_to_write() {
        assert_eq!(
            freeze(&["block.1"]).unwrap_err(),
            "freeze: `block.1` is not a layer of this model; use `blocks.1`, `blocks.0`, \
             `blocks.1.mlp`, `blocks.0.mlp`, `head`, `embedding` or one of 2 others"
        );
        assert!(freeze(&["*"]).unwrap_err().contains("nothing to train"));
        let tied = freeze(&["blocks.0", "head"]).unwrap_err();
        assert!(
            tied.contains("tied to `embedding.table`") && tied.contains("freeze `embedding` as well"),
            "{tied}"
        );
        assert!(freeze(&["embedding", "head"]).is_ok() && freeze(&["embedding"]).is_ok());
    }
}

"""The faults of app/: checkpoints, runs, configuration, training (faults.py says what a fault is)."""

from faults import faults

CHECKPOINT = [
    *faults(
        "app/checkpoint/safetensors.cpp",
        (
            "gaps between tensors pass",
            "if (entry.begin != covered) {",
            "if (entry.begin < covered) {",
            "app_tests:Damaged.*",
        ),
        (
            "a wrong checksum passes",
            "if (found != expected->second)",
            "if (found.size() != expected->second.size())",
            "app_tests:Damaged.*",
        ),
        (
            "a header of any size is read",
            "if (length > kMaxHeader) {",
            "if (length > kMaxHeader * 1000) {",
            "app_tests:Damaged.*",
        ),
        (
            "another type is converted silently",
            "found->second.sizes() != target.sizes() || found->second.scalar_type() != target.scalar_type()",
            "found->second.sizes() != target.sizes()",
            "app_tests:LoadInto.*",
        ),
        (
            "what the model does not have is left out silently",
            "if (wanted.count(it->first) == 0) unexpected",
            "if (wanted.empty()) unexpected",
            "app_tests:LoadInto.*",
        ),
    ),
    *faults(
        "app/checkpoint/safetensors_header.cpp",
        (
            "a tensor may stand twice",
            "if (!names_.insert(value).second)",
            "if (!names_.insert(value).second && value.empty())",
            "app_tests:Damaged.*",
        ),
    ),
    *faults(
        "app/run/atomic_file.cpp",
        (
            "others may not read what the umask lets them",
            "O_CLOEXEC, 0666);",
            "O_CLOEXEC, 0600);",
            "app_tests:Safetensors*",
        ),
        (
            "a full disk is not said",
            "if (written < 0) return errno;",
            "if (written < 0) return 0;",
            "app_tests:Safetensors*:RunDirectory.*",
        ),
        (
            "half a row stays in a full file",
            "if (error != 0 && ::ftruncate",
            "if (error < 0 && ::ftruncate",
            "app_tests:MetricsCsv.*",
        ),
    ),
    *faults(
        "app/run/run_directory.cpp",
        ("two processes write one run", "LOCK_EX | LOCK_NB", "LOCK_SH | LOCK_NB", "app_tests:RunDirectory.*:Start.*"),
        (
            "a run that went back loses its new checkpoints",
            "number >= 0 && number <= newest)",
            "number >= 0 && newest >= 0)",
            "app_tests:RunDirectory.*",
        ),
        (
            "killed writers' files stay among the checkpoints",
            '  remove_stale_temporaries(path_ / "checkpoints");\n',
            "",
            "app_tests:RunDirectory.*",
        ),
    ),
    *faults(
        "app/run/metrics_csv.cpp",
        (
            "a resumed epoch has two rows",
            "if (position >= resume_at) continue;",
            "if (position > resume_at) continue;",
            "app_tests:MetricsCsv.*",
        ),
    ),
    *faults(
        "app/train/state.cpp",
        (
            "the average forgets how often it moved",
            "if (state.ema) state.ema->updates = info.ema_updates;",
            "if (state.ema) state.ema->updates = 0;",
            "app_tests:*Resume.*",
        ),
    ),
    *faults(
        "app/train/checkpoint_info.cpp",
        (
            "the count of good updates is lost",
            'p.good_in_row = m.integer("good_in_row", 0, kMostCounted);',
            "",
            "app_tests:*Case31*:*Resume.*",
        ),
        (
            "patience starts anew at each resume",
            'if (m.has("stale")) p.stale = m.integer("stale", 0, kMostEpochs);',
            "",
            "app_tests:Running.*",
        ),
        (
            "a batch beyond the epoch is taken",
            'm.integer("batch", 0, most_batches(info))',
            'm.integer("batch", 0, kMostCounted)',
            "app_tests:ResultFaults.*",
        ),
    ),
    *faults(
        "app/train/metadata.cpp",
        (
            "integers past their range are taken",
            "if (result < low || result > high)",
            "if (result < low)",
            "app_tests:ResultFaults.*",
        ),
    ),
    *faults(
        "app/results/predictions.cpp",
        (
            "an answer that is not finite is scored",
            "if (const std::int64_t row = first_not_finite(logits); row >= 0)",
            "if (const std::int64_t row = first_not_finite(logits); row > 1000000)",
            "app_tests:ResultFaults.*",
        ),
    ),
    *faults(
        "app/train/best.cpp",
        (
            "a metric that is not finite becomes the best",
            "if (!std::isfinite(loss)) return false;",
            "if (std::isnan(loss)) return true;",
            "app_tests:NoteEvaluation.*",
        ),
        (
            "of equal accuracies the first epoch stays the best",
            "|| (top1 == best_top1 && lower)",
            "",
            "app_tests:NoteEvaluation.*:Runs.*",
        ),
    ),
]

CONFIG = [
    *faults(
        "app/config/value.cpp",
        (
            "the open end of a range is closed",
            "range->low_open ? value > range->low : value >= range->low",
            "value >= range->low",
            "app_tests:Config*",
        ),
        ("010 is ten", "if (text[start] == '0' && text.size() > start + 1) return false;", "", "app_tests:Config*"),
        (
            "numbers are printed to six digits",
            "std::to_chars(buffer, buffer + sizeof buffer, value)",
            "std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 6)",
            "app_tests:Config.*",
        ),
    ),
    *faults(
        "app/config/yaml_tree.cpp",
        (
            "a key may be set twice",
            "      if (!fresh) {",
            "      if (!fresh && node->text.empty()) {",
            "app_tests:ConfigErrors.*",
        ),
        (
            "tags pass",
            'if (!tag.empty() && tag != "?" && tag != "!")',
            'if (tag == "!!binary")',
            "app_tests:ConfigErrors.*",
        ),
    ),
    *faults(
        "app/config/load.cpp",
        (
            "binary data is read as text",
            "if (text.find('\\0') != std::string::npos) fail(",
            "if (text.empty() && !text.empty()) fail(",
            "app_tests:ConfigErrors.*",
        ),
    ),
    *faults(
        "app/config/check.cpp",
        (
            "heads need not divide the width",
            "if (model.dim[i] % model.heads[i] != 0) {",
            "if (model.dim[i] < model.heads[i]) {",
            "app_tests:ConfigErrors.*",
        ),
        (
            "dropout of less than one draw passes",
            "(p < 1.0 / 256 || p > 255.0 / 256)",
            "p > 255.0 / 256",
            "app_tests:ConfigErrors.*",
        ),
        (
            "a number that float32 does not hold passes",
            "value == 0 || value >= double{std::numeric_limits<float>::min()}",
            "value >= 0",
            "app_tests:ConfigErrors.*",
        ),
    ),
    *faults(
        "app/config/suggest.cpp",
        (
            "anything is a misspelling of something",
            "return 3 * changes <= std::max",
            "return changes <= 3 * std::max",
            "app_tests:ConfigErrors.*",
        ),
        (
            "a short word's neighbour in another section is meant",
            "return 6 * changes <= std::max",
            "return 3 * changes <= std::max",
            "app_tests:ConfigErrors.*",
        ),
    ),
]

TRAIN = [
    *faults(
        "app/train/schedule.cpp",
        ("the warm-up starts at 0", "return (u + 1) / warmup;", "return u / warmup;", "app_tests:Schedule.*"),
    ),
    *faults(
        "app/train/step.cpp",
        (
            "every step draws the same masks",
            "state_.rng.select(0, 1).add_(1);",
            "state_.rng.select(0, 1).add_(0);",
            "app_tests:Update.*",
        ),
        (
            "a skipped update keeps its batch statistics",
            "at::where(verdict.good, statistics_[i], statistics_before_[i])",
            "statistics_[i].clone()",
            "app_tests:*TrainFaults*",
        ),
        (
            "accumulated gradients are summed, not averaged",
            "seed_.fill_(1 / static_cast<double>(micro_batches));",
            "seed_.fill_(1);",
            "app_tests:Update.*",
        ),
    ),
    *faults(
        "app/train/optimizer.cpp",
        (
            "norms and biases decay",
            'return parameter.dim() >= 2 && ends_with(name, ".weight");',
            'return ends_with(name, ".weight") && parameter.defined();',
            "app_tests:*Decay*:*Rules*",
        ),
        (
            "Muon's tall matrices get too small updates",
            "static_cast<double>(rows) / static_cast<double>(columns)));",
            "1.0));",
            "app_tests:Muon.*:*Rules*",
        ),
    ),
    *faults(
        "app/train/epoch.cpp",
        (
            "an evaluation that is not finite goes on",
            'if (!std::isfinite(e.loss) && config_.train.on_nonfinite == "stop") {',
            'if (config_.train.on_nonfinite == "never") {',
            "app_tests:*TrainFaults*",
        ),
    ),
    *faults(
        "app/train/checks.cpp",
        (
            "other labels than before are not seen",
            "if (before.label_checksum != now.label_checksum)",
            "if (before.train_images != now.train_images)",
            "app_tests:Start.*",
        ),
    ),
    *faults(
        "app/train/evaluate.cpp",
        (
            "evaluation drops out",
            "  model.eval();\n  at::Tensor sums;",
            "  at::Tensor sums;",
            "app_tests:Commands.TrainEval*:Start.*",
        ),
    ),
]

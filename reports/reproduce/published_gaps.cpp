#include "reports/reproduce/published_gaps.h"

#include <algorithm>

namespace kvcast::reports {
namespace {

constexpr std::string_view accuracy = "accuracies of trained models";
constexpr std::string_view curves = "read off curves that are drawn and not printed";
constexpr std::string_view noise =
    "under traffic of others that is not described; noise is `simulate --noise`";
constexpr std::string_view examples = "compared from the example's file, in kvr-examples";
constexpr std::string_view limit = "a limit that its derivation names, not a number of a model";

}  // namespace

const std::vector<PublishedGap>& published_gaps() {
  static const std::vector<PublishedGap> all{
      {"kvp_equations.csv", "", "definitions; kvp-table3 to kvp-table8 are computed from them"},
      {"kvp_prose.csv", "kvp_p02", "the ratio of kvp_p01 and kvp_p03, both in kvp-section3"},
      {"kvp_prose.csv", "kvp_p11", curves},
      {"kvp_prose.csv", "kvp_p12", curves},
      {"kvp_prose.csv", "kvp_p16", accuracy},
      {"kvp_prose.csv", "kvp_p17", accuracy},
      {"kvp_prose.csv", "kvp_p18", accuracy},
      {"kvp_prose.csv", "kvp_p19", "a statement about devices in general"},
      {"kvp_prose.csv", "kvp_p27", "a statement about other work"},
      {"kvp_prose.csv", "kvp_p32", "values of trained weights"},
      {"kvp_prose.csv", "kvp_p33", "values of trained weights"},
      {"kvp_table2_consistency_ablation.csv", "", accuracy},
      {"kvp_table3_mcqa_openelm_1p1b.csv", "", accuracy},
      {"kvp_table5_triviaqa_openelm_1p1b.csv", "",
       "accuracies of trained models, and the TTFT of RP-0.25, which is that of RP-0.75 (E12)"},
      {"kvp_table6_triviaqa_openelm_3b.csv", "", accuracy},
      {"kvp_table7_humaneval_openelm_1p1b.csv", "", accuracy},
      {"kvp_table8_mcqa_openelm_3b.csv", "", accuracy},
      {"kvr_equations.csv", "", "Appendix D's search cost, compared from the text", true},
      {"kvr_figure_captions.csv", "",
       "captions without GPUs or context, of noisy networks, and those that contradict (E6, E7)"},
      {"kvr_prose.csv", "kvr_p03", "a summary of the speed-ups in kvr_p01 and kvr_p02"},
      {"kvr_prose.csv", "kvr_p04", "a summary of the speed-ups in kvr-table1-speedups"},
      {"kvr_prose.csv", "kvr_p05", limit},
      {"kvr_prose.csv", "kvr_p06", limit},
      {"kvr_prose.csv", "kvr_p07", limit},
      {"kvr_prose.csv", "kvr_p08", "an assumption of the paper's bound"},
      {"kvr_prose.csv", "kvr_p09", examples, true},
      {"kvr_prose.csv", "kvr_p10", examples, true},
      {"kvr_prose.csv", "kvr_p11", examples, true},
      {"kvr_prose.csv", "kvr_p12", examples, true},
      {"kvr_prose.csv", "kvr_p13", examples, true},
      {"kvr_prose.csv", "kvr_p14", examples, true},
      {"kvr_prose.csv", "kvr_p15", examples, true},
      {"kvr_prose.csv", "kvr_p22", curves},
      {"kvr_prose.csv", "kvr_p23", curves},
      {"kvr_prose.csv", "kvr_p24", noise},
      {"kvr_prose.csv", "kvr_p25", noise},
      {"kvr_prose.csv", "kvr_p26", noise},
      {"kvr_prose.csv", "kvr_p27", noise},
      {"kvr_table3_ttft_low_bandwidth.csv", "",
       "the 1 GB/s columns, which cannot be meant literally (E5)"},
      {"kvr_worked_partition_examples.csv", "",
       "what searches of Figure 6 found on the authors' node; the first is in kvr-prose"},
      {"mlkv_prose.csv", "mlkv_p08", "in data/measurements, compared in mlkv-memory", true},
      {"mlkv_prose.csv", "mlkv_p09", "in data/measurements, compared in mlkv-memory", true},
      {"mlkv_prose.csv", "mlkv_p10", "in data/measurements, compared in mlkv-memory", true},
      {"mlkv_prose.csv", "mlkv_p23", "training time"},
      {"mlkv_table3_benchmarks.csv", "", "accuracies of trained models; their averages are"},
      {"slim_appendix_i_mha_models.csv", "", "models that the catalog lacks (data/models/README)"},
      {"slim_encdec_options.csv", "", "support for rotary positions, said in words"},
      {"slim_nonsquare_options.csv", "", "complexity and rotary positions, said in words"},
      {"slim_prose.csv", "slim_p15", "a statement about models, and wrong: E15"},
      {"slim_prose.csv", "slim_p16",
       "a statement about models; Aya-23-35B, which it is about, is of another family"},
      {"slim_prose.csv", "slim_p28", "a setting, the input of p29 to p31"},
      {"slim_prose.csv", "slim_p36", "measured on a notebook that is not described"},
      {"slim_prose.csv", "slim_p37", "measured on a notebook that is not described"},
      {"specprefill_equations.csv", "",
       "definitions; spec_p02 is computed from them, and the parts of a TTFT in sweep"},
      {"specprefill_prose.csv", "spec_p03", "queries per second of a server"},
      {"specprefill_prose.csv", "spec_p04", accuracy},
      {"specprefill_prose.csv", "spec_p05", accuracy},
      {"specprefill_prose.csv", "spec_p07", "a statement about other work"},
      {"specprefill_prose.csv", "spec_p08", "measured against MInference, which is not modelled"},
      {"specprefill_prose.csv", "spec_p09", "measured against MInference, which is not modelled"},
      {"specprefill_prose.csv", "spec_p10", "no row of Table 1 gives it: E23"},
      {"specprefill_prose.csv", "spec_p18", accuracy},
      {"specprefill_prose.csv", "spec_p20", "a statement about other work"},
      {"specprefill_prose.csv", "spec_p21", "\"around\": 10 % of 4000 tokens"},
      {"specprefill_table1_longbench_70b.csv", "",
       "accuracies of trained models; their averages are"},
      {"specprefill_table2_ruler_70b.csv", "", "accuracies of trained models; their averages are"},
      {"specprefill_table3_rag_baselines.csv", "", "settings in words"},
      {"specprefill_table4_system.csv", "",
       "what a benchmark measured on the machine, and no peak among it: E22"},
  };
  return all;
}

std::string_view claim_left_out(std::string_view claim) {
  const auto found =
      std::find_if(published_gaps().begin(), published_gaps().end(),
                   [&](const PublishedGap& g) { return !claim.empty() && g.claim == claim; });
  return found == published_gaps().end() ? std::string_view{} : found->reason;
}

}  // namespace kvcast::reports

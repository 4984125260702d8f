#include <algorithm>

#include <ATen/ATen.h>

#include "app/commands/commands.h"
#include "app/commands/option_checks.h"
#include "app/commands/result.h"
#include "app/config/load.h"
#include "app/results/looks.h"
#include "app/results/picture.h"
#include "app/results/predictions.h"
#include "app/results/test_images.h"
#include "app/run/output_file.h"
#include "app/run/run_error.h"
#include "app/train/checks.h"
#include "data/image.h"

namespace axial::app {
namespace {

constexpr std::int64_t kSide = 448;  // pixels of the picture that is drawn, at least

Json likeliest(const at::Tensor& logits, const std::vector<std::string>& classes) {
  const auto [values, indices] = logits.softmax(0).topk(std::min<std::int64_t>(3, logits.size(0)));
  Json result = Json::array();
  for (std::int64_t i = 0; i < values.size(0); ++i) {
    result.push_back({{"class", classes[static_cast<std::size_t>(indices[i].item<std::int64_t>())]},
                      {"probability", rounded(values[i].item<double>(), 4)}});
  }
  return result;
}

}  // namespace

int run_explain(const ExplainArguments& a) {
  const OutputFile file(a.output, {a.image, resolve_checkpoint(a.checkpoint)});
  LoadedModel loaded = load_model(a.checkpoint, a.device, a.overrides);
  check_result(file, loaded.info.config);
  check_ending(a.output, ".png");
  const ImageSpec& spec = loaded.info.spec;
  at::Tensor seen, shown;
  if (const auto index = test_index(a.image)) {
    seen = TestImages(loaded.info).get(*index);
    shown = enlarged(seen, kSide);
  } else {
    // The part that the model sees, drawn as finely as the file has it within reason.
    seen = file_image(a.image, loaded.info);
    shown = file_image(a.image, loaded.info, enlargement(spec.height, spec.width, kSide));
  }
  const Look look = look_at(loaded, seen, shown);
  if (first_not_finite(look.logits.unsqueeze(0)) == 0) throw RunError(a.image + ": " + kOverflow);
  const bool all = a.map == "all";
  const at::Tensor& one = a.map == "rows" ? look.rows : a.map == "columns" ? look.columns : look.both;
  file.write(encode_png(all ? side_by_side({look.picture, look.both, look.rows, look.columns}) : one));
  print_result({{"image", a.image},
                {"classes", likeliest(look.logits, spec.classes)},
                {"map", a.map},
                {"peak",
                 {{"both", rounded(look.both_peak, 2)},
                  {"rows", rounded(look.rows_peak, 2)},
                  {"columns", rounded(look.columns_peak, 2)}}},
                {"output", a.output}});
  return 0;
}

}  // namespace axial::app

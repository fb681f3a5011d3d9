#include "model/methods/method.h"

namespace kvcast {

Method plain() {
  return {"plain",
          MethodKind::Prompt,
          "the model as it is: every prompt token, its own cache",
          {},
          [](const MethodSpec&, Plan&) {},
          "plain"};
}

}  // namespace kvcast

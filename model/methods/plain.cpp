#include "model/methods/method.h"

namespace kvcast {

Method plain() {
  return {"plain", MethodKind::Prompt, "the unchanged model", {}, [](const MethodSpec&, Plan&) {},
          "plain"};
}

}  // namespace kvcast

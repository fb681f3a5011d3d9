/// Products of operands that lie in plain rows and are larger than the caches.
#pragma once

#include "model/execute/block_product.h"
#include "model/execute/matrix.h"

namespace kvcast::execute {

/// On all threads. Numbers are added up in an order that depends on the sizes alone: the results
/// are the same on any number of threads.
void multiply_large(const Product& product, const ProductForm& form);

}  // namespace kvcast::execute

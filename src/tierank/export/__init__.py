"""Export with proof: fitted models in the formats of other engines, and a check that they score the same there."""

from tierank.export.neutral import NAN as NAN
from tierank.export.neutral import NONE as NONE
from tierank.export.neutral import ZERO as ZERO
from tierank.export.neutral import Embedding as Embedding
from tierank.export.neutral import Layer as Layer
from tierank.export.neutral import Model as Model
from tierank.export.neutral import Network as Network
from tierank.export.neutral import QueryCopies as QueryCopies
from tierank.export.neutral import Scorer as Scorer
from tierank.export.neutral import StandardisedMean as StandardisedMean
from tierank.export.neutral import Sum as Sum
from tierank.export.neutral import Trees as Trees
from tierank.export.proof import Proof as Proof
from tierank.export.proof import verify as verify
from tierank.export.targets import TARGETS as TARGETS
from tierank.export.targets import Target as Target
from tierank.export.targets import as_target as as_target
from tierank.export.targets import check_export_place as check_export_place
from tierank.export.targets import write_model as write_model

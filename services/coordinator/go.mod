module staddle.internal/services/coordinator

go 1.26.7

require (
	staddle.internal/kit v0.0.0
	staddle.internal/proto v0.0.0
)

replace (
	staddle.internal/kit => ../../kit
	staddle.internal/proto => ../../proto
)

/**
 * Types of the inspector's data, as the server sends it, and of the state of the page.
 *
 * The server leaves out fields with their default value; `TimelineState` fills them in, so a module that reads
 * rows, changes, requests or reductions from there finds every field.
 *
 * @module
 */

/**
 * How a request shows a message.
 * @typedef {"full" | "clipped" | "masked" | "summarised" | "dropped" | "removed"} ShownLevel
 */

/**
 * One event of the log.
 * @typedef {object} TimelineRow
 * @property {number} seq
 * @property {string} kind the kind of the event as the log stores it, such as `tool_returned`
 * @property {string} category the part of the request that a message belongs to; "" for any other event
 * @property {number | null} at seconds since 1970; null if unknown
 * @property {string} preview
 * @property {number} chars characters of the whole text
 * @property {number} units units of the whole message, before any reduction
 * @property {string} tool
 * @property {string} path
 * @property {number} call for a result: the event that called for it; -1 if none did
 * @property {boolean} failed
 * @property {number} target for an event about another one: that event; -1 if none
 */

/**
 * From event `at` on, requests show the message `key` like this.
 * @typedef {object} ViewChange
 * @property {number} at
 * @property {string} key
 * @property {ShownLevel} level
 * @property {string} category
 * @property {number} units units as it is shown; 0 for what is not in the request
 * @property {number} by the event that put it at this level; -1 if it is shown as it was said
 * @property {string} rule
 * @property {string} preview what is shown instead, if that is not the whole text
 * @property {number} place the event after which it stands in the request; -1 at its own place
 */

/**
 * Why a part of a request had to be read again.
 * @typedef {object} CacheMiss
 * @property {string} cause
 * @property {string} text
 * @property {number} by
 * @property {string} key
 * @property {number} tokens
 * @property {number | null} lost
 * @property {string} provider
 */

/**
 * One answered request to the model.
 * @typedef {object} RequestRow
 * @property {number} number counted from 1
 * @property {number} at the view after this event was sent
 * @property {number} answer
 * @property {number} used
 * @property {number | null} time
 * @property {string} model
 * @property {number} window
 * @property {number} units
 * @property {number} tools
 * @property {string} [tool_text] how many tools there are, and how many were used
 * @property {number} tokens
 * @property {number} predicted
 * @property {number} ratio tokens per unit
 * @property {number} overhead
 * @property {number} read
 * @property {number} written
 * @property {number} uncached
 * @property {number} output
 * @property {number | null} cost
 * @property {number} prefix
 * @property {string[]} breakpoints
 * @property {CacheMiss | null} miss
 */

/**
 * One reduction.
 * @typedef {object} ReductionCard
 * @property {number} seq
 * @property {string} kind
 * @property {string} rule
 * @property {string} reason
 * @property {string} why
 * @property {number} before
 * @property {number} after
 * @property {string[]} keys
 * @property {number} count
 * @property {number} first
 * @property {number} last
 * @property {string} by
 * @property {number} chars
 * @property {string[]} checks
 * @property {string[]} checked
 * @property {string[]} unchecked
 * @property {number | null} score
 * @property {number | null} cost
 * @property {number} seconds
 * @property {number} behind
 * @property {number | null} pays_after
 * @property {[number, number][]} ranges the events that it hides
 * @property {string} did what a cut did, in words
 * @property {number} undone
 * @property {string} problem
 */

/**
 * Dollars per million tokens; null if unknown.
 * @typedef {object} Prices
 * @property {number | null} [input]
 * @property {number | null} [cache_read]
 * @property {number | null} [cache_write]
 * @property {number | null} [output]
 */

/**
 * A session, or its continuation from event `first` on, as the server sends it.
 * @typedef {object} Timeline
 * @property {string} id
 * @property {string} [title]
 * @property {string} [format]
 * @property {string} [model]
 * @property {string} [policy]
 * @property {number} [window]
 * @property {number} [limit]
 * @property {Prices} [prices]
 * @property {number | null} [cache_ttl]
 * @property {string} [origin]
 * @property {number} [first]
 * @property {number} [next]
 * @property {boolean} [outline] only the newest view, without sizes; the whole timeline follows
 * @property {number} [generation] changes when earlier events of a transcript are others now
 * @property {Partial<TimelineRow>[]} [rows]
 * @property {Partial<ViewChange>[]} [changes]
 * @property {Partial<RequestRow>[]} [requests]
 * @property {number} [first_request]
 * @property {Partial<ReductionCard>[]} [reductions]
 * @property {number | null} [spent]
 * @property {number} [unpriced] calls with reported usage whose price is unknown
 * @property {number | null} [saved]
 * @property {string[]} [problems]
 */

/**
 * One session in the overview.
 * @typedef {object} SessionRow
 * @property {string} key
 * @property {string} [title]
 * @property {string} [format]
 * @property {string} [model]
 * @property {number} [active]
 * @property {number} [created]
 * @property {number} [events]
 * @property {number} [bytes]
 * @property {number} [window]
 * @property {number} [used] tokens of the last request with reported usage
 * @property {number[]} [shares] of the window, of the requests with reported usage; may be thinned
 * @property {number} [requests]
 * @property {number} [reported] requests with reported usage
 * @property {number | null} [spent]
 * @property {number} [unknown_calls] calls that are not part of `spent`
 * @property {number | null} [cache_share]
 * @property {number} [reductions]
 * @property {string} [error]
 * @property {number} [error_at] time of the last failure
 * @property {string} [origin]
 * @property {string} [place]
 * @property {boolean} [writable]
 * @property {number[]} [times]
 * @property {boolean} [partial] whether the figures are of the newest events only, or not computed yet
 */

/**
 * @typedef {object} SessionPage
 * @property {SessionRow[]} sessions
 * @property {string} next cursor of the next page; "" at the end
 * @property {string[]} [problems] what could not be read, for people
 * @property {number} [searching] sessions that are still being indexed for this search
 */

/**
 * A part of a message.
 * @typedef {object} MessagePart
 * @property {"text" | "thinking" | "call" | "media" | "opaque"} kind
 * @property {string} [text]
 * @property {string} [name]
 * @property {string} [id]
 * @property {string} [mime]
 * @property {number} [size]
 */

/**
 * The text of a message, or a window of it.
 * @typedef {object} MessageText
 * @property {string} key
 * @property {string} [kind]
 * @property {string} [role]
 * @property {MessagePart[]} [parts]
 * @property {number} [chars]
 * @property {number} [from]
 * @property {boolean} [truncated]
 * @property {string} [level]
 * @property {string} [rule]
 * @property {number} [by]
 */

/**
 * @typedef {object} SentMessage
 * @property {string} json
 * @property {string} [role]
 * @property {string[]} [keys]
 * @property {number} [bytes]
 */

/**
 * A request as it is sent to the provider.
 * @typedef {object} SentRequest
 * @property {number} at
 * @property {string} [dialect]
 * @property {string[]} [dialects]
 * @property {SentMessage[]} [messages]
 * @property {string} [system]
 * @property {string} [tools]
 * @property {number} [bytes]
 * @property {string} [curl]
 * @property {string} [note]
 */

/**
 * @typedef {object} DiffRow
 * @property {"same" | "changed" | "removed" | "added"} op
 * @property {number} [a]
 * @property {number} [b]
 * @property {string} [key]
 * @property {string} [label]
 * @property {number} [count]
 * @property {[string, string][]} [lines]
 */

/**
 * @typedef {object} RequestDiff
 * @property {number} a
 * @property {number} b
 * @property {string} [dialect]
 * @property {{message: number, byte: number, key: string} | null} [first]
 * @property {number} [same]
 * @property {string} [moved_by]
 * @property {number[]} [by]
 * @property {DiffRow[]} [rows]
 */

/**
 * @typedef {object} TextHits
 * @property {string} q
 * @property {[string, number][]} [hits] key, and the event that made the version with the text (-1: the whole text)
 * @property {boolean} [truncated]
 */

/**
 * One detail that the request after a compaction does not have.
 * @typedef {object} LostDetail
 * @property {"rule" | "request" | "error" | "path" | "name"} kind
 * @property {string} text
 * @property {string} key the message that has it
 * @property {number} [again] the first later event that uses it; -1 if none does
 */

/**
 * What makes room for a message that is shown again.
 * @typedef {object} ExpansionRoom
 * @property {string} text
 * @property {boolean} [possible] false if the session would refuse it
 */

/**
 * @typedef {object} LostDetails
 * @property {number} event the compaction
 * @property {number} at the newest event of the request that was compared
 * @property {LostDetail[]} [details]
 * @property {number} [left_out] further details that are not listed
 */

/**
 * A sentence in which the user states a rule, a correction or a fact.
 * @typedef {object} UserStatement
 * @property {string} handle the message
 * @property {string} text
 * @property {"rule" | "correction" | "fact"} kind
 * @property {string} replaced_by the later message that replaces it; "" while it holds
 * @property {"verbatim" | "record" | "nowhere"} shown
 */

/**
 * @typedef {object} ShownStatements
 * @property {number} at the newest event of the request that was looked at
 * @property {UserStatement[]} [statements] oldest first
 * @property {number} [left_out] further statements that are not listed
 */

/**
 * A step that its request said less about than the whole history does.
 * @typedef {object} SurprisingStep
 * @property {number} answer the event of the step
 * @property {number} bits bits per byte more than after the whole history
 * @property {[string, string][]} [gone] what the step quotes and its request did not have, each with the newest
 *     message that has it
 */

/**
 * @typedef {object} StepSurprises
 * @property {number} at the newest event of the log that was measured
 * @property {number} [steps] steps after the first reduction that can be measured
 * @property {number} [measured]
 * @property {number} [mean] bits per byte
 * @property {SurprisingStep[]} [worst] the most surprising first
 */

/**
 * @typedef {object} WhatIfFigure
 * @property {string} name
 * @property {string} [unit] `dollars`, `share` (0 to 1), `tokens` or `count`
 * @property {number | null} [recorded] null if it is unknown
 * @property {number | null} [replayed]
 */

/**
 * @typedef {object} WhatIf
 * @property {string} [label]
 * @property {Timeline} timeline
 * @property {WhatIfFigure[]} [figures]
 * @property {string[]} [notes] what was assumed, and why a figure is unknown
 */

/**
 * What to do with a session.
 * @typedef {object} ActionBody
 * @property {"undo" | "expand" | "pin" | "mark" | "supersede" | "drop" | "compact"} action
 * @property {string} [event]
 * @property {string} [by] the later message that replaces the event
 * @property {string} [priority] when reductions hide the event: `low`, `normal` or `high`
 * @property {string} [text]
 * @property {string} [focus]
 * @property {string} [writer] name of a `OfferedWriter`; "" for the default one
 */

/**
 * What can write the summary of a compaction.
 * @typedef {object} OfferedWriter
 * @property {string} name
 * @property {string} title
 * @property {boolean} [calls_model]
 */

/**
 * @typedef {object} ActionResult
 * @property {string} [event] the event that the action appended
 * @property {string} [text] what happened, in one sentence
 */

/**
 * @typedef {object} Filters
 * @property {string[]} roles
 * @property {string[]} tools
 * @property {string[]} levels
 * @property {string} text
 */

/**
 * The state of the page of a session. Everything that the page shows follows from it and from the timeline.
 * @typedef {object} PageState
 * @property {number} point the view after this event is shown; -1 for an empty session
 * @property {number} request index of the request that was chosen; -1 if an event was chosen
 * @property {boolean} follow whether the point stays at the newest event
 * @property {string} selected key of the selected message; "" if none is
 * @property {string} panel id of the open panel
 * @property {Filters} filters
 * @property {readonly number[]} unfolded branches that are shown whole after their end, by the event that began them
 * @property {{a: number, b: number}} compare indices of the two requests of the diff; -1 if none is chosen
 * @property {"log" | "view"} columns the column that a narrow screen shows; a wide one shows both
 * @property {number} version counts the parts that were appended to the timeline
 * @property {import("./timeline_state.js").TimelineState | null} whatIf the replayed timeline
 * @property {"recorded" | "whatIf"} lane the timeline that the main view shows
 */

/**
 * Says a sentence in the status line. News wait while an answer to the user is shown.
 * @typedef {(text: string, kind?: "answer" | "news") => void} Announce
 */

/**
 * What every module of the session's page is given.
 * @typedef {object} App
 * @property {import("./data_source.js").DataSource} data
 * @property {import("./timeline_state.js").TimelineState} timeline the recorded session
 * @property {import("./app_state.js").AppState} state
 * @property {() => import("./timeline_state.js").TimelineState} shown the timeline that the main view shows: the
 *     recorded one, or the replayed one
 * @property {Announce} announce
 * @property {(key: string) => void} openText selects a message and opens its text
 * @property {(seq: number) => void} goTo shows the view after an event
 * @property {(index: number) => void} goToRequest shows the view that a request has sent
 * @property {(key: string) => void} select selects a message without opening a panel
 * @property {(timeline: Timeline) => void} append adds a part that a live session has sent
 * @property {() => Promise<void>} refresh loads what is new and appends it
 */

/**
 * One tab of the panels.
 * @typedef {object} Panel
 * @property {string} id
 * @property {string} title
 * @property {HTMLElement} element
 * @property {(state: PageState) => void} render called for the visible panel only, at most once a frame
 */

/** Marks this file as a module; the types above are all that it holds. */
export const TYPES_VERSION = 1;
